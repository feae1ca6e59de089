"""How many KV blocks a placement sets aside on its worker.

Rule: blocks for the prompt and for the output up to `OUTPUT_TOKENS`, less those that the worker's cache holds already.
Cached blocks are left out because the steps of one workflow share them: counting a shared prefix for each of them would leave most of a
cache unused. The next heartbeat corrects the optimism: its `blocks_used` counts a shared prefix once, and long outputs in full. Until then
the engine's own admission and retraction keep it safe, at the price of a wait.
Inputs: the job, the worker's block size, tokens found in its cache.
Constant: OUTPUT_TOKENS, four times the median output of conversations (129 tokens) in the traces of Splitwise (Patel et al., ISCA 2024),
because `max_tokens` is mostly a ceiling far above what is generated.
"""

from shared.contracts.steps import Job

OUTPUT_TOKENS = 512


def expected_output_tokens(job: Job) -> int:
    """Output tokens that a placement plans for."""
    return min(job.max_tokens, OUTPUT_TOKENS)


def blocks_in_all(job: Job, block_tokens: int) -> int:
    """Blocks of prompt and planned output, wherever they come from."""
    return -(-(job.prompt_tokens + expected_output_tokens(job)) // block_tokens)


def blocks_needed(job: Job, block_tokens: int, cached_tokens: int) -> int:
    """Blocks to set aside. Never negative."""
    return max(0, blocks_in_all(job, block_tokens) - cached_tokens // block_tokens)


def uncached_tokens(job: Job, cached_tokens: int) -> int:
    """Prompt tokens to compute: at least one, whose logits give the first output token."""
    return max(1, job.prompt_tokens - cached_tokens)
