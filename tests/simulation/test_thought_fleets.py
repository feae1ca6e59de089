"""Fleets that are only thought: what must hold whatever the load and the disturbances, and what each part of the world does."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from legato.simulate.scenario import Scenario
from legato.simulate.steps import Step
from legato.simulate.world import run
from shared.contracts.ids import StepId
from shared.core.errors import LegatoError
from shared.sim.measured import STATUSES, Measured
from shared.sim.programs import Call, Program, Segment

SUCCEEDED = STATUSES.index("succeeded")
CHAT = {"kind": "chat", "with": {"rate_per_s": 1.5}}
SINGLE = {"kind": "single", "with": {"rate_per_s": 4.0}}
POOL = {"law": "llama-3.1-8b@a100", "count": 3, "usd_per_hour": 2.0}
STORM = {
    "worker_killed_every_s": 20.0,
    "worker_drained_every_s": 30.0,
    "service_restarted_every_s": 5.0,
    "database_away_every_s": 40.0,
}
QUICK = {"provision_s": 5.0, "image_s": 1.0, "weights_gb": 2.0, "warm_up_s": 1.0}


def scenario(**changes: Any) -> Scenario:
    plan = {"name": "test", "seconds": 60.0, "pools": {"a": POOL}, "workload": [CHAT], **changes}
    return msgspec.convert(plan, Scenario)


def played(seed: int = 1, policy: str = "", **changes: Any) -> Measured:
    return run(scenario(**changes), policy, seed, Path("nowhere"), lambda share: None)


def outcomes(measured: Measured) -> dict[str, int]:
    return {name: count for index, name in enumerate(STATUSES) if (count := measured.calls.status.count(index))}


def well_ended(measured: Measured) -> list[bool]:
    """Of each program that was not cut off by the end of the run: somebody may think for long before the next question."""
    programs = measured.programs
    return [bool(well) for well, ended in zip(programs.succeeded, programs.ended_s, strict=True) if not math.isnan(ended)]


def waits_s(measured: Measured) -> list[float]:
    return [first - asked for first, asked in zip(measured.calls.first_s, measured.calls.asked_s, strict=True) if not math.isnan(first)]


def test_two_runs_of_one_seed_are_the_same_and_another_seed_is_another_run() -> None:
    first, again, other = played(), played(), played(seed=2)
    assert first.hash == again.hash != other.hash
    assert first.calls.ended_s == again.calls.ended_s


def test_everything_ends_well_on_a_quiet_fleet() -> None:
    measured = played()
    assert measured.totals.violations == []
    assert set(outcomes(measured)) == {"succeeded"}
    assert all(well_ended(measured))
    assert max(measured.calls.attempts) == 1


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_in_a_storm(seed: int) -> None:
    measured = played(seed=seed, seconds=90.0, faults=STORM)
    assert measured.totals.violations == []
    assert measured.totals.lost_attempts > 0
    assert max(measured.calls.attempts) > 1  # somebody went on elsewhere
    assert set(outcomes(measured)) == {"succeeded"}
    assert all(well_ended(measured))


@pytest.mark.parametrize("seed", [9, 10])  # in both, two attempts write the same tokens if the place is not looked at
def test_a_scheduler_that_was_away_while_workers_came_and_went_lets_nobody_write_twice(seed: int) -> None:
    pool = {
        "law": "llama-3.1-8b@h100:vllm",
        "count": 3,
        "slots": 64,
        "keep": "continuum",
        "spot": {"mean_life_s": 40.0, "notice_s": 1.0},
        "cold": {"provision_s": 2.0, "image_s": 1.0, "weights_gb": 2.0, "gb_per_s": 2.0, "warm_up_s": 1.0},
        "autoscaler": {"min": 1, "max": 5, "policy": "dynamo"},
    }
    faults = {
        "worker_killed_every_s": 7.0,
        "worker_drained_every_s": 9.0,
        "service_restarted_every_s": 5.0,
        "restart_s": 10.0,
        "database_away_every_s": 11.0,
        "database_away_s": 3.0,
    }
    tenants = [
        {"name": "a", "behaviour": {"patience_s": 3.0, "tries": 3, "timeout_s": 20.0}},
        {"name": "b", "priority": 20, "behaviour": {"tries": 2, "rude": True}},
    ]
    chat = {
        "rate_per_s": 3.0,
        "system_tokens": 0,
        "output": {"median": 200.0, "sigma": 1.0},
        "think_s": {"median": 1.0},
        "tenants": tenants,
    }
    services = {"scheduler.order": "atlas", "scheduler.queueing": "worker"}
    load = [{"kind": "chat", "with": chat}]
    measured = played(seed=seed, pools={"p": pool}, faults=faults, workload=load, services=services, drain_s=200.0, sample_s=1.0)
    assert measured.totals.lost_attempts > 0
    assert measured.totals.violations == []


def test_two_attempts_of_a_step_go_on_from_what_is_stored_or_not_at_all() -> None:
    call = Call(key="c", prompt=(Segment(1, 100),), output=Segment(2, 50))
    step = Step(StepId("s"), Program(id="p", kind="k", begins_s=0.0, calls=(call,)), call, 16)
    assert step.write(1, 0, 10, (1, 2))
    assert step.write(1, 10, 5, (3, 4))
    assert not step.write(2, 10, 5, (3, 4)), "it began before the first attempt wrote more"
    assert step.write(2, 15, 5, (5, 6))
    assert not step.write(1, 20, 5, (7, 8)), "it is fenced by the second"
    assert step.tokens == 20


def test_the_fleet_costs_what_its_workers_cost_for_as_long_as_the_load_lasts() -> None:
    measured = played(workload=[{"kind": "single", "with": {"rate_per_s": 0.1}}], warm_up_s=10.0, sample_s=60.0)
    assert measured.totals.load_worker_s == pytest.approx(3 * 50.0)
    assert measured.totals.load_usd == pytest.approx(3 * 50.0 / 3600 * 2.0)


def test_what_is_added_to_first_tokens_is_what_readers_wait_longer() -> None:
    quick, slow = (played(workload=[SINGLE], network={"first_ms": added}) for added in (0.0, 500.0))
    assert sum(waits_s(slow)) / len(waits_s(slow)) == pytest.approx(sum(waits_s(quick)) / len(waits_s(quick)) + 0.5, abs=0.05)


def test_an_attempt_that_goes_on_elsewhere_says_no_token_twice() -> None:
    quiet, measured = (played(seconds=120.0, workload=[SINGLE], faults=faults) for faults in ({}, STORM))
    said = dict(zip(quiet.calls.asked_s, quiet.calls.output_tokens, strict=True))
    moved = [index for index, attempts in enumerate(measured.calls.attempts) if attempts > 1]
    assert moved
    assert all(measured.calls.output_tokens[index] == said[measured.calls.asked_s[index]] for index in moved)


def test_what_a_conversation_said_before_is_found_in_the_cache() -> None:
    measured = played()
    cached, asked = sum(measured.calls.cached_tokens), sum(measured.calls.prompt_tokens)
    ideal = 1 - sum(measured.calls.wanted_tokens) / asked
    assert 0.5 * ideal < cached / asked <= ideal


def test_a_fleet_that_is_too_small_queues_and_a_larger_one_does_not() -> None:
    load = [{"kind": "single", "with": {"rate_per_s": 12.0}}]
    small, large = (played(pools={"a": {**POOL, "count": count, "slots": 16}}, workload=load) for count in (1, 6))
    assert max(small.samples.queued) > 50
    assert max(large.samples.queued) == 0
    assert sum(waits_s(small)) > 10 * sum(waits_s(large))


def test_a_queue_that_is_full_sheds_and_clients_try_again_only_as_often_as_they_may() -> None:
    tenant = {"behaviour": {"tries": 3, "retry_s": 0.5}}
    load = [{"kind": "single", "with": {"rate_per_s": 20.0, "tenants": [tenant]}}]
    measured = played(pools={"a": {**POOL, "count": 1, "slots": 4}}, workload=load, services={"scheduler.queue_max": 8})
    assert outcomes(measured).get("shed", 0) + outcomes(measured).get("refused", 0) > 0
    assert max(measured.calls.tries) == 3
    assert measured.totals.violations == []


def test_a_client_without_patience_cancels_what_does_not_begin() -> None:
    load = [{"kind": "single", "with": {"rate_per_s": 20.0, "tenants": [{"behaviour": {"patience_s": 1.0}}]}}]
    measured = played(pools={"a": {**POOL, "count": 1, "slots": 4}}, workload=load)
    assert outcomes(measured)["cancelled"] > 0
    assert max(waits_s(measured)) < 1.5


def test_an_autoscaled_pool_grows_once_its_workers_are_warm_and_pays_for_them() -> None:
    pool = {**POOL, "count": 1, "slots": 8, "cold": QUICK, "autoscaler": {"min": 1, "max": 5, "scale_up_after_s": 1.0}}
    measured = played(pools={"a": pool}, workload=[{"kind": "single", "with": {"rate_per_s": 8.0}}])
    grown = next(at for at, workers in zip(measured.samples.at_s, measured.samples.workers, strict=True) if workers > 1)
    assert grown >= 9.0  # 5 s for a machine, 1 for its image, 2 GB of weights at 1 GB/s, 1 to warm up
    assert max(measured.samples.workers) > 2
    assert measured.totals.fleet_usd > measured.totals.seconds / 3600 * 2.0


def test_a_spot_worker_is_replaced_and_its_steps_move_before_it_goes() -> None:
    pool = {**POOL, "cold": QUICK, "spot": {"mean_life_s": 40.0, "notice_s": 3.0}}
    measured = played(pools={"a": pool}, seconds=120.0)
    assert measured.totals.violations == []
    assert set(outcomes(measured)) == {"succeeded"}
    assert max(measured.calls.attempts) > 1
    assert measured.totals.lost_attempts == 0


def test_a_spot_worker_that_goes_without_notice_takes_its_attempts_with_it() -> None:
    pool = {**POOL, "cold": QUICK, "spot": {"mean_life_s": 40.0, "notice_s": 0.0}}
    measured = played(pools={"a": pool}, seconds=120.0)
    assert measured.totals.violations == []
    assert set(outcomes(measured)) == {"succeeded"}
    assert measured.totals.lost_attempts > 0
    assert measured.totals.wasted_gpu_s > 0


def test_recorded_spot_capacity_is_how_many_workers_there_are(tmp_path: Path) -> None:
    (tmp_path / "spot.json").write_text('{"metadata": {"gap_seconds": 30}, "data": [2, 1, 2, 2]}')
    pool = {**POOL, "count": 4, "cold": QUICK, "spot": {"trace": "spot.json", "notice_s": 5.0}}
    measured = run(scenario(pools={"a": pool}, seconds=120.0), "", 1, tmp_path, lambda share: None)
    ready = {round(at): workers for at, workers in zip(measured.samples.at_s, measured.samples.workers, strict=True)}
    assert (ready[25], ready[55], ready[65], ready[75]) == (4, 2, 2, 4)  # 9 s for a cold start
    assert measured.totals.violations == []


def test_what_is_kept_for_a_program_is_found_when_its_tool_has_run() -> None:
    load = [{"kind": "copilot", "with": {"rate_per_s": 0.5}}, {"kind": "single", "with": {"rate_per_s": 6.0, "system_tokens": 0}}]
    crowded = {**POOL, "count": 2, "blocks": 1_500}
    plain, fixed, learned = (
        played(pools={"a": {**crowded, **keeping}}, seconds=90.0, workload=load)
        for keeping in ({}, {"keep_s": 60.0}, {"keep": "continuum"})
    )
    assert sum(plain.calls.cached_tokens) < sum(fixed.calls.cached_tokens)
    assert learned.hash not in (plain.hash, fixed.hash)
    assert plain.totals.violations == fixed.totals.violations == learned.totals.violations == []


def test_two_policies_of_one_scenario_play_the_same_load() -> None:
    policies = {"few": {"scheduler.queue_max": 1}, "many": {}}
    few, many = (played(policy=name, policies=policies, workload=[SINGLE]) for name in policies)
    assert few.policy == "few"
    assert sorted(few.calls.asked_s) == sorted(many.calls.asked_s)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policies": {"a": {"scheduler.nonsense": 1}}}, "scheduler.nonsense"),
        ({"policies": {"a": {"nobody.queue_max": 1}}}, "nobody.queue_max"),
        ({"policies": {"a": {"scheduler.queue_max": 0}}}, "queue_max"),
        ({"pools": {"a": {**POOL, "law": "gpt-9@h100"}}}, "gpt-9"),
        ({"workload": [{"kind": "noise"}]}, "noise"),
        ({"workload": [{"kind": "single", "with": {"model": "other"}}]}, "the model 'other'; the pools serve model"),
    ],
)
def test_what_there_is_not_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(LegatoError, match=says):
        played(policy="a" if "policies" in changes else "", **changes)


def test_a_policy_that_the_scenario_does_not_have_is_said() -> None:
    with pytest.raises(LegatoError, match="no policy 'best'"):
        played(policy="best")
