"""A few worlds of many: `make sim` runs a thousand."""

import os
import subprocess
import sys

import msgspec
import pytest

from bench.sim.minimise import minimised
from bench.sim.mutations import mutated
from bench.sim.plan import drawn
from bench.sim.world import simulate
from services.worker import service as worker
from shared.core.step_law import PRESETS
from shared.drivers import service as driving
from shared.drivers.live import LiveDriver


@pytest.mark.parametrize("seed", [2, 12, 16, 32, 471])
def test_a_world_with_faults_keeps_every_promise(seed: int) -> None:
    result = simulate(drawn(seed))
    assert not result.broken, f"see it again: make sim SEED={seed}"
    assert result.steps


def test_a_world_without_faults_brings_every_step_to_an_end() -> None:
    result = simulate(drawn(5, faults=False))
    assert not result.broken
    assert set(result.statuses) <= {"succeeded", "cancelled", "expired", "shed"}


def test_a_seed_gives_the_same_events_again_whatever_the_hash_seed() -> None:
    code = "from bench.sim.plan import drawn; from bench.sim.world import simulate; print(simulate(drawn(27)).hash)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60
        )
        for seed in ("1", "2")
    ]
    here = simulate(drawn(27)).hash
    assert {run.stdout.strip() for run in runs} == {here}
    assert simulate(drawn(28)).hash != here


@pytest.mark.parametrize("bug", ["drops-tokens", "reserves-twice", "never-frees", "draws-lots"])
def test_a_planted_bug_shows_itself(bug: str) -> None:
    with mutated(bug):
        assert any(simulate(drawn(seed)).broken for seed in range(1, 6))


def test_who_is_in_no_world_is_left_alone() -> None:
    simulate(drawn(2))
    for name in ("build", "watch"):
        assert getattr(worker, name).__module__.startswith("services.")
    assert driving.LiveDriver is LiveDriver
    assert set(PRESETS) == {"instant", "8b-h100", "8b-a100"}


def test_what_was_planted_is_gone_afterwards() -> None:
    with mutated("drops-tokens"):
        assert simulate(drawn(2)).broken
    assert not simulate(drawn(2)).broken


def test_a_plan_is_made_shorter_as_long_as_it_breaks_something() -> None:
    plan = drawn(12)
    kind = plan.faults[-1]
    shorter = minimised(plan, lambda each: kind in each.faults)
    assert shorter.faults == [kind]
    assert len(shorter.programs) == 1
    assert len(shorter.programs[0].asks) == 1
    assert msgspec.json.decode(msgspec.json.encode(shorter), type=type(plan)) == shorter
