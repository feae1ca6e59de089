"""Placement "dynamo_kv_cost": the cost of NVIDIA Dynamo's KV router.

Rule: the least overlap_score_weight x prefill blocks + decode blocks.
    prefill blocks = prompt tokens that the worker would have to compute, of this step and of those placed there before, / block size
    decode blocks = KV blocks in use there, and those of this step's prompt
Inputs: the prompt's tokens and how many are cached on each worker with room, prefill placed there and not done, blocks in use.
Constant: configuration; overlap_score_weight 1.0 is Dynamo's default. Its temperature is 0, the default: the least cost, no draw.
Source: NVIDIA Dynamo, "KV cache routing" (docs/architecture/kv_cache_routing.md, 2025), whose example is the test's; as of 0.4 to 1.0.
Later versions call the weight an overlap credit, which is 1.0 as well.
Where it differs: Dynamo counts the blocks of active sequences, each shared block once; blocks in use here are those that the worker
reports, and what placements set aside (reserve.py), planned output included. Among equals the first by id.
"""

from services.scheduler.candidate import Candidate, used_blocks
from services.scheduler.config import DynamoConfig
from services.scheduler.policies.reserve import uncached_tokens
from shared.contracts.steps import Job


def cost(prefill_blocks: float, decode_blocks: float, config: DynamoConfig) -> float:
    """In blocks."""
    return config.overlap_score_weight * prefill_blocks + decode_blocks


def cost_on(job: Job, candidate: Candidate, config: DynamoConfig) -> float:
    """Of the job on the worker, in the worker's blocks."""
    load = candidate.load
    prefill_tokens = load.backlog_tokens + uncached_tokens(job, candidate.cached_tokens)
    prompt_blocks = -(-job.prompt_tokens // load.block_tokens)
    return cost(prefill_tokens / load.block_tokens, used_blocks(load) + prompt_blocks, config)


def least_cost(job: Job, candidates: list[Candidate], config: DynamoConfig) -> tuple[Candidate, float]:
    """The choice and its cost. `candidates`: at least one."""
    least, _, chosen = min((cost_on(job, each, config), each.load.id, each) for each in candidates)
    return chosen, least
