"""NVIDIA Dynamo's load-based planner: one worker at a time, by KV blocks in use and by what waits."""

from services.autoscaler.config import DynamoConfig, PoolConfig
from services.autoscaler.policies.dynamo import GRACE_INTERVALS, QUEUE_INTERVALS, kv_load, next_target
from services.autoscaler.state import Sample, Target
from tests.pool_of_workers import SECOND, told, waits

POOL = PoolConfig(min=1, max=5, policy="dynamo")


def at(second: int, *, kv: float = 0.7, depth: int = 0, workers: int = 2, coming: int = 0) -> Sample:
    blocks = 100 * workers
    return Sample(second * SECOND, workers, coming, 10 * workers, 0, depth, blocks, round(kv * blocks))


def interval(kv: float, depths: list[int] | int = 0, **about: int) -> list[Sample]:
    """Half a minute of samples, the last one of which begins the next."""
    each = [depths] * 15 if isinstance(depths, int) else depths
    return [at(second, kv=kv, depth=depth, **about) for second, depth in zip(range(32, 62, 2), each, strict=True)]


def after(samples: list[Sample], workers: int = 2, grown: int = 0) -> int:
    return next_target(samples, Target(workers, 0, 0, grown * SECOND), 60 * SECOND, POOL)


def test_the_defaults_are_the_planners() -> None:
    config = DynamoConfig()
    assert (config.adjustment_interval_s, config.kv_scale_up, config.kv_scale_down) == (30.0, 0.9, 0.5)
    assert (config.queue_scale_up, config.queue_scale_down, GRACE_INTERVALS, QUEUE_INTERVALS) == (0.5, 0.2, 3, 3)


def test_the_kv_load_is_the_share_of_blocks_in_use() -> None:
    assert kv_load([at(0, kv=0.25), at(2, kv=0.75)]) == 0.5
    assert kv_load([Sample(0, 0, 0, 0, 0, 0)]) == 0.0


def test_one_worker_is_added_above_and_taken_below_the_thresholds() -> None:
    assert after(interval(0.91)) == 3
    assert after(interval(0.9)) == 2
    assert after(interval(0.5)) == 2
    assert after(interval(0.49)) == 1


def test_what_waits_adds_one_unless_it_goes_away_by_itself() -> None:
    assert after(interval(0.7, 3)) == 3
    assert after(interval(0.7, [20] * 10 + [14] * 5)) == 2, "14 - 3 x 6 is nothing"
    assert after(interval(0.7, [20] * 10 + [16] * 5)) == 3, "16 - 3 x 4 is still something"
    assert after(interval(0.4, [1] * 4 + [0] * 11)) == 2, "0.27 on average: too little to add, and too much to take away"


def test_after_an_addition_nothing_is_taken_away_for_three_intervals() -> None:
    samples = interval(0.1)
    shifted = [Sample(each.at_ns + 60 * SECOND, *tuple(getattr(each, name) for name in Sample.__struct_fields__[1:])) for each in samples]
    assert next_target(samples, Target(3, 0, 0, 30 * SECOND), 60 * SECOND, POOL) == 3
    assert next_target(shifted, Target(3, 0, 0, 31 * SECOND), 120 * SECOND, POOL) == 3
    assert next_target(shifted, Target(3, 0, 0, 30 * SECOND), 120 * SECOND, POOL) == 2


def test_nothing_is_changed_within_an_interval_nor_while_workers_come_or_go() -> None:
    assert next_target(interval(0.95)[:-1], Target(2, 0, 0), 58 * SECOND, POOL) == 2
    assert after(interval(0.95, coming=1)) == 2
    gone = [*interval(0.95)[:-1], at(60, kv=0.95, workers=1)]
    assert after(gone) == 2


def test_the_bounds_hold() -> None:
    assert after(interval(0.95), workers=5) == 5
    assert after(interval(0.1), workers=1) == 1


def test_the_machine_follows_the_policy_that_is_configured() -> None:
    changes = told(POOL, workers=2, seconds=400, load=lambda second: waits(10, 0, blocks_used=190 if second < 90 else 20))
    assert [message.workers for _, message in changes] == [2, 3, 4, 5, 4, 3, 2, 1]
    [grown] = [second for second, message in changes if message.workers == 5]
    shrunk = max(second for second, message in changes if message.workers == 4)
    assert shrunk - grown >= 90
    assert changes[1][1].why.endswith("3 by dynamo")
