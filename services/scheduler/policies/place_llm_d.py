"""Placement "llm_d": the default profile of llm-d's inference scheduler.

Rule: filters, then the highest sum of weighted scores, each between 0 and 1:
    prefix     the share of the prompt's blocks that the worker has cached
    kv         1 - the share of its KV blocks that are in use
    queue      (longest queue - its queue) / (longest - shortest); 1 for all where all are equal
Inputs: cached tokens, KV blocks in use and steps that wait in the engine, of each worker with room.
Constants: configuration; weights 3, 2 and 2 are those of the default configuration.
Source: llm-d inference scheduler, pkg/epp/config/loader/defaults.go and the scorers' README files (2026); before 2026 in the Kubernetes
Gateway API inference extension.
Where it differs: llm-d's default guesses what is cached from what it has sent; here it is what workers report (as its precise scorer
does). Its picker draws among equals; here it is the first by id. Queues of engines are empty as long as steps wait in the scheduler
(`queueing` "central"), so that the third score says nothing then.
"""

from services.scheduler.candidate import Candidate, used_blocks, waiting
from services.scheduler.config import LlmDConfig


def prefix_score(candidate: Candidate, prompt_tokens: int) -> float:
    """Whole blocks only, as they are cached."""
    block = candidate.load.block_tokens
    return candidate.cached_tokens // block / max(1, prompt_tokens // block)


def kv_score(candidate: Candidate) -> float:
    """0 as well where more is set aside than there is."""
    return max(0.0, 1.0 - used_blocks(candidate.load) / candidate.load.capacity_blocks)


def queue_score(queue: int, longest: int, shortest: int) -> float:
    """Of one among all."""
    return (longest - queue) / (longest - shortest) if longest > shortest else 1.0


def highest_score(candidates: list[Candidate], prompt_tokens: int, config: LlmDConfig) -> tuple[Candidate, float]:
    """The choice and its score. `candidates`: at least one."""
    queues = [waiting(each.load) for each in candidates]
    longest, shortest = max(queues), min(queues)

    def score(candidate: Candidate) -> float:
        return (
            config.prefix_weight * prefix_score(candidate, prompt_tokens)
            + config.kv_weight * kv_score(candidate)
            + config.queue_weight * queue_score(waiting(candidate.load), longest, shortest)
        )

    negative, _, chosen = min((-score(each), each.load.id, each) for each in candidates)
    return chosen, -negative
