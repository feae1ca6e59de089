"""The scheduler's policies by worked examples."""

import pytest

from services.scheduler.book import Step, Worker
from services.scheduler.load import Load
from services.scheduler.policies import retry
from services.scheduler.policies.drain import SERVICE_MS, drain_ms, smoothed
from services.scheduler.policies.filter_failed import is_spared
from services.scheduler.policies.filter_fits import could_ever_fit, fits
from services.scheduler.policies.filter_ready import is_ready
from services.scheduler.policies.order import queue_key
from services.scheduler.policies.reserve import OUTPUT_TOKENS, blocks_in_all, blocks_needed, uncached_tokens
from services.scheduler.policies.score_finish import finish_s
from services.scheduler.queue import Queue
from shared.contracts.fleet import Capacity, WorkerState
from shared.contracts.ids import ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import Job

JOB = Job(model=ModelName("m"), prompt_tokens=100, max_tokens=60)
LONG = Job(model=ModelName("m"), prompt_tokens=100, max_tokens=100_000)


def worker(**about: object) -> Worker:
    capacity = Capacity(blocks=20, slots=4, prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0)
    fields = {"state": WorkerState.READY, "beaten": True, **about}
    return Worker(id=WorkerId("a"), epoch=1, model=ModelName("m"), capacity=capacity, block_tokens=16, **fields)


def step(**about: object) -> Step:
    return Step(id=StepId("s"), job=JOB, workflow=WorkflowId(""), tenant=TenantId(""), trace="", arrival=1, routed_ns=0, **about)


def test_order_is_priority_then_arrival() -> None:
    keys = [queue_key(0, 2, StepId("b")), queue_key(1, 3, StepId("c")), queue_key(0, 1, StepId("z")), queue_key(-1, 0, StepId("a"))]
    assert [key[2] for key in sorted(keys)] == ["c", "z", "b", "a"]


def test_a_queue_knows_its_tokens_and_who_is_not_in_it() -> None:
    queue = Queue()
    queue.add(queue_key(0, 1, StepId("a")), 10)
    queue.add(queue_key(0, 2, StepId("b")), 5)
    queue.remove(queue_key(0, 1, StepId("a")), 10)
    assert (queue.tokens, [key[2] for key in queue.keys]) == (5, ["b"])
    with pytest.raises(AssertionError, match="a does not wait"):
        queue.remove(queue_key(0, 1, StepId("a")), 10)


def test_a_placement_sets_aside_prompt_and_output_less_what_is_cached() -> None:
    assert blocks_needed(JOB, 16, 0) == blocks_in_all(JOB, 16) == 10
    assert blocks_needed(JOB, 16, 96) == 4
    assert blocks_needed(JOB, 16, 10_000) == 0
    assert blocks_in_all(LONG, 16) == -(-(100 + OUTPUT_TOKENS) // 16)
    assert (uncached_tokens(JOB, 96), uncached_tokens(JOB, 100)) == (4, 1)


def test_a_worker_is_ready_that_says_so_and_was_heard() -> None:
    assert is_ready(worker(), 90, 100, 50)
    assert not is_ready(worker(), 50, 100, 50)
    assert not is_ready(worker(beaten=False), 90, 100, 50)
    assert not is_ready(worker(state=WorkerState.DRAINING), 90, 100, 50)


def test_a_step_fits_where_slots_and_blocks_are_free() -> None:
    assert fits(JOB, Load(worker()), 0)
    assert fits(JOB, Load(worker(reserved_blocks=10)), 0)
    assert not fits(JOB, Load(worker(reserved_blocks=11)), 0)
    assert not fits(JOB, Load(worker(foreign_blocks=11)), 0)
    assert fits(JOB, Load(worker(reserved_blocks=16)), 96)
    assert not fits(JOB, Load(worker(foreign_slots=4)), 0)
    assert not could_ever_fit(LONG, 16, 38)
    assert could_ever_fit(LONG, 16, 39)


def test_the_worker_that_failed_is_spared_while_there_is_another_and_until_it_is_heard() -> None:
    failed, heard = step(failed_on=WorkerId("a"), failed_ns=5), Load(worker(), heard_ns=5)
    assert is_spared(heard, failed, ready=2)
    assert not is_spared(heard, failed, ready=1)
    assert is_spared(Load(worker(), heard_ns=4), failed, ready=1)
    assert not is_spared(Load(worker(), heard_ns=4), step(failed_on=WorkerId("b"), failed_ns=5), ready=2)


def test_the_finish_is_the_prefill_ahead_the_own_and_the_output() -> None:
    second = 1_000_000_000
    assert finish_s(100, 50, Load(worker()), second) == pytest.approx(0.1 + 1.0)
    assert finish_s(100, 50, Load(worker(computed_ns=second + second // 2)), second) == pytest.approx(0.5 + 0.1 + 1.0)
    assert finish_s(100, 50, Load(worker(computed_ns=second // 2)), second) == pytest.approx(0.1 + 1.0)
    assert finish_s(100, 50, Load(worker(foreign_slots=2)), second) == pytest.approx(0.1 + 1.5)


def test_retries_end_with_cancellation_deadline_or_the_last_attempt() -> None:
    assert retry.verdict(step(attempt=3), 0, attempts_max=4) is None
    ended = retry.verdict(step(attempt=4, failed_on=WorkerId("a")), 0, attempts_max=4)
    assert ended is not None
    assert (ended[0], ended[1].reason) == (Status.FAILED, Reason.ATTEMPTS_EXHAUSTED)
    assert "4 attempts" in ended[1].message
    cancelled = retry.verdict(step(attempt=4, cancelled=True), 0, attempts_max=4)
    assert cancelled is not None
    assert cancelled[0] is Status.CANCELLED


def test_the_predicted_wait_shares_the_work_among_all_slots() -> None:
    assert drain_ms(waiting=0, slots=4, busy=3, service_ms=100) == 0
    assert drain_ms(waiting=0, slots=4, busy=4, service_ms=100) == 25
    assert drain_ms(waiting=7, slots=4, busy=4, service_ms=100) == 200
    assert drain_ms(waiting=0, slots=1, busy=1, service_ms=0) == SERVICE_MS
    assert drain_ms(waiting=5, slots=0, busy=0, service_ms=100) == 0
    assert smoothed(0.0, 80.0) == 80.0
    assert smoothed(100.0, 200.0) == pytest.approx(110.0)
