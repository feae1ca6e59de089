"""Where a step goes: filter, score, pick. The filters hold whatever the placement is; it chooses among those who have room."""

from typing import NamedTuple

from services.scheduler.book import Step
from services.scheduler.candidate import Candidate
from services.scheduler.config import SchedulerConfig
from services.scheduler.load import Load
from services.scheduler.policies.filter_failed import is_spared
from services.scheduler.policies.filter_fits import fitting
from services.scheduler.policies.place_dynamo import least_cost
from services.scheduler.policies.place_least_loaded import least_loaded
from services.scheduler.policies.place_llm_d import highest_score
from services.scheduler.policies.place_random import highest_draw
from services.scheduler.policies.place_round_robin import next_in_turn
from services.scheduler.policies.place_smg import cache_aware
from services.scheduler.policies.reserve import expected_output_tokens, uncached_tokens
from services.scheduler.policies.score_finish import finish_s, wait_s
from shared.contracts.ids import WorkerId


class Choice(NamedTuple):
    """A worker for a step, by which rule, and what that says of it."""

    rule: str
    says: str
    load: Load
    cached_tokens: int

    def why(self, ready: int, now_ns: int) -> str:
        """The reasons, for people. Of the loads before the step was placed."""
        ahead_ms = wait_s(self.load, now_ns) * 1e3
        return (
            f"{self.rule} of {ready}: {self.says}, "
            f"{self.cached_tokens} tokens cached, {ahead_ms:.0f} ms of prompts ahead, {self.load.busy}/{self.load.slots} slots"
        )


def published(step: Step, loads: list[Load], ready: int, config: SchedulerConfig, last: WorkerId) -> Choice | None:
    """A worker by the published rule that `config.placement` names, or None: nobody has room. `loads`: those of the `ready` workers that
    have a free slot. `last`: who was given a step of this model last."""
    found = candidates(step, loads, ready)
    return _pick(step, found, config, last) if found else None


def candidates(step: Step, loads: list[Load], ready: int) -> list[Candidate]:
    """Who has room, and may have the step."""
    has_room = fitting(step.job)
    found = (Candidate(load, cached_tokens(step, load)) for load in loads)
    return [each for each in found if has_room(*each) and not is_spared(each.load, step, ready)]


def least_finish(step: Step, loads: list[Load], ready: int, now_ns: int) -> Choice | None:
    """The worker with the least predicted finish; among equals the one that has the least to compute, then the first by id."""
    has_room, output_tokens = fitting(step.job), expected_output_tokens(step.job)
    best: tuple[float, int, str, Load, int] | None = None
    for load in loads:
        cached = cached_tokens(step, load)
        if is_spared(load, step, ready) or not has_room(load, cached):
            continue
        score = finish_s(uncached_tokens(step.job, cached), output_tokens, load, now_ns)
        if best is None or (score, load.computed_ns, load.id) < best[:3]:
            best = score, load.computed_ns, load.id, load, cached
    return None if best is None else Choice("least finish", f"{best[0] * 1e3:.0f} ms", best[3], best[4])


def cached_tokens(step: Step, load: Load) -> int:
    """Prompt tokens that the worker's cache holds, as far as known; the last one is computed in any case."""
    return min(step.cached_on(load.id), step.job.prompt_tokens - 1)


def _pick(step: Step, found: list[Candidate], config: SchedulerConfig, last: WorkerId) -> Choice:
    """`found`: at least one."""
    match config.placement:
        case "round_robin":
            return Choice("next in turn", f"behind {last or 'nobody'}", *next_in_turn(found, last))
        case "random":
            return Choice("highest draw", f"of {len(found)} with room", *highest_draw(step.id, found))
        case "smg_cache_aware":
            chosen, reason = cache_aware(found, step.job.prompt_tokens, config.smg)
            return Choice("cache aware", reason, *chosen)
        case "dynamo_kv_cost":
            chosen, cost = least_cost(step.job, found, config.dynamo)
            return Choice("least cost", f"{cost:.1f} blocks", *chosen)
        case "llm_d":
            chosen, score = highest_score(found, step.job.prompt_tokens, config.llm_d)
            return Choice("highest score", f"{score:.3f}", *chosen)
        case _:
            return Choice("least loaded", f"of {len(found)} with room", *least_loaded(found))
