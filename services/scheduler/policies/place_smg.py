"""Placement "smg_cache_aware": the rule of SGLang's model gateway (its router's policy `cache_aware`).

Rule: where loads are out of balance, the least loaded worker. They are when the largest exceeds the smallest by more than
`balance_abs_threshold` steps and by more than the factor `balance_rel_threshold`. Where they are in balance, the worker with the longest
cached prefix, if that is more than the share `cache_threshold` of the prompt; else the least loaded one.
Inputs: steps on each worker with room, the prompt's cached tokens there.
Constants: configuration; 0.3, 64 and 1.5 are the gateway's documented defaults.
Source: SGLang model gateway, sgl-model-gateway/src/policies/cache_aware.rs and its documentation (2025-2026).
Where it differs: the gateway guesses what is cached from the texts that it has sent to each worker; here it is what the workers report to
the registry. Documentation of the gateway sends an unknown prompt to the worker with the smallest tree of such texts; its code of 2026 to
the least loaded one, and so does this. Balance is judged among workers with room, not among all.
"""

from services.scheduler.candidate import Candidate
from services.scheduler.config import SmgConfig
from services.scheduler.policies.place_least_loaded import least_loaded


def out_of_balance(most: int, least: int, config: SmgConfig) -> bool:
    """By the steps of the worker that has the most, and of the one that has the least."""
    return most - least > config.balance_abs_threshold and most > least * config.balance_rel_threshold


def cache_aware(candidates: list[Candidate], prompt_tokens: int, config: SmgConfig) -> tuple[Candidate, str]:
    """The choice and why. `candidates`: at least one."""
    loads = [each.load.busy for each in candidates]
    if out_of_balance(max(loads), min(loads), config):
        return least_loaded(candidates), "out of balance"
    longest = min(candidates, key=lambda each: (-each.cached_tokens, each.load.busy, each.load.id))
    if longest.cached_tokens / max(1, prompt_tokens) > config.cache_threshold:
        return longest, "cached"
    return least_loaded(candidates), "not cached"
