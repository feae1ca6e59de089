"""What admission decides, on plain data."""

import msgspec
import pytest

from services.admission.config import AdmissionConfig, Terms
from services.admission.decide import wake_ns
from services.admission.state import GRACE_NS, REMEMBERED_NS, SETTLED_KEPT, SWEEP_NS, State
from shared.contracts.envelope import Tick
from shared.contracts.ids import TenantId, WorkflowId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Sampling, Submission
from shared.contracts.streams import OUT
from tests.admission_desk import KEY, MS, NOW, OTHER_KEY, SECOND, Desk


def test_without_tenants_everybody_is_admitted_as_default() -> None:
    message = Desk().admitted("s", key="", priority=7, workflow=WorkflowId("w"), trace="00-a-b-01", chat=True)
    assert (message.step, message.tenant, message.workflow, message.trace) == ("s", "default", "w", "00-a-b-01")
    job = message.job
    assert (job.model, job.prompt_tokens, job.max_tokens, job.priority, job.chat) == ("small", 10, 10, 7, True)
    assert (job.accepted_ns, job.deadline_ns) == (NOW, NOW + 600 * SECOND)


def test_a_key_names_its_tenant() -> None:
    assert Desk(requests_per_minute=10).admitted().tenant == TenantId("acme")


@pytest.mark.parametrize("key", ["", OTHER_KEY, "acme"])
def test_an_unknown_key_is_refused(key: str) -> None:
    problem = Desk(requests_per_minute=10).refused(key=key)
    assert (problem.reason, problem.param) == (Reason.UNAUTHENTICATED, "key")


def test_two_tenants_cannot_have_the_same_key() -> None:
    with pytest.raises(ValueError, match="same key"):
        AdmissionConfig(tenants={"a": Terms(keys=[KEY]), "b": Terms(keys=[KEY])})


def test_what_could_not_be_read_is_refused_with_its_reason() -> None:
    problem = Problem(reason=Reason.INVALID, message="no JSON")
    assert Desk().refused(problem=problem) == problem


def test_a_step_without_max_tokens_gets_what_the_context_leaves() -> None:
    assert Desk().admitted(prompt_tokens=300, sampling=Sampling()).job.max_tokens == 700


def test_a_step_without_max_tokens_gets_at_most_what_its_tenant_may_ask_for() -> None:
    assert Desk(max_output_tokens=50).admitted(sampling=Sampling()).job.max_tokens == 50


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"), [(990, 10, True), (991, 10, False), (1_000, None, False), (999, None, True)]
)
def test_prompt_and_output_must_fit_into_the_context(prompt_tokens: int, max_tokens: int | None, fits: bool) -> None:
    fields = {"prompt_tokens": prompt_tokens, "sampling": Sampling(max_tokens=max_tokens)}
    if fits:
        Desk().admitted(**fields)
    else:
        problem = Desk().refused(**fields)
        assert problem.reason is Reason.CONTEXT_TOO_LONG
        assert "1000" in problem.message
        assert str(prompt_tokens) in problem.message


def test_more_output_than_the_tenant_may_have_is_refused_by_name() -> None:
    problem = Desk(max_output_tokens=50).refused(sampling=Sampling(max_tokens=51))
    assert (problem.reason, problem.param) == (Reason.INVALID, "max_tokens")


def test_a_longer_minimum_than_maximum_is_refused_by_name() -> None:
    assert Desk().refused(sampling=Sampling(max_tokens=5, min_tokens=6)).param == "min_tokens"


def test_a_priority_above_the_tenants_is_refused_by_name() -> None:
    desk = Desk(priority_max=3)
    assert desk.admitted(priority=3).job.priority == 3
    assert desk.refused(priority=4).param == "priority"


def test_requests_beyond_the_rate_are_told_when_to_come_back_and_then_admitted() -> None:
    desk = Desk(requests_per_minute=3)
    for _ in range(3):
        desk.admitted()
    desk.now += 5 * SECOND
    problem = desk.refused()
    assert (problem.reason, problem.retry_after_ms) == (Reason.RATE_LIMITED, 15_000)
    desk.now += problem.retry_after_ms * MS - 1
    desk.refused()
    desk.now += 1
    desk.admitted()


def test_tokens_are_reserved_for_prompt_and_longest_output_and_returned_when_not_used() -> None:
    desk = Desk(tokens_per_minute=100)
    admitted = desk.admitted("a", prompt_tokens=20, sampling=Sampling(max_tokens=80))
    assert admitted.reservation is not None
    assert admitted.reservation.tokens == 100
    assert desk.refused(prompt_tokens=20, sampling=Sampling(max_tokens=20)).retry_after_ms == 24_000
    desk.settle("a", prompt_tokens=20, output_tokens=30)
    desk.admitted(prompt_tokens=20, sampling=Sampling(max_tokens=30))
    desk.refused(prompt_tokens=1, sampling=Sampling(max_tokens=1))


def test_what_flowed_back_by_itself_is_not_returned_a_second_time() -> None:
    desk = Desk(tokens_per_minute=100)
    desk.admitted("a", prompt_tokens=20, sampling=Sampling(max_tokens=80))
    desk.now += 60 * SECOND
    desk.admitted("b", prompt_tokens=20, sampling=Sampling(max_tokens=80))
    desk.settle("a", prompt_tokens=20)
    desk.refused(prompt_tokens=1, sampling=Sampling(max_tokens=1))


@pytest.mark.parametrize(
    ("prompt_tokens", "param", "words"),
    [
        (50, "max_tokens", "needs 101 tokens, 50 of prompt and 51 of output (max_tokens); tenant acme has 100 per minute"),
        (50, "max_tokens", "max_tokens can be at most 50"),
        (99, "max_tokens", "max_tokens can be at most 1"),
        (100, "prompt", "the prompt is too long"),
    ],
)
def test_a_step_larger_than_the_whole_bucket_is_a_wrong_request_not_an_early_one(prompt_tokens: int, param: str, words: str) -> None:
    problem = Desk(tokens_per_minute=100).refused(prompt_tokens=prompt_tokens, sampling=Sampling(max_tokens=51))
    assert (problem.reason, problem.param, problem.retry_after_ms) == (Reason.INVALID, param, 0)
    assert words in problem.message


def test_what_can_never_be_admitted_is_told_so_also_at_another_limit() -> None:
    desk = Desk(tokens_per_minute=100, requests_per_minute=1, concurrent_max=1)
    desk.admitted(prompt_tokens=1, sampling=Sampling(max_tokens=99))
    assert desk.refused(prompt_tokens=50, sampling=Sampling(max_tokens=51)).reason is Reason.INVALID


def test_a_whole_bucket_can_be_asked_for_at_once_whatever_its_size() -> None:
    for size in (1, 2, 3, 7, 59, 61, 997, 999_983):
        desk = Desk(tokens_per_minute=size, max_output_tokens=10**6)
        desk.admitted(prompt_tokens=0, context_tokens=10**6, sampling=Sampling(max_tokens=size))
        assert desk.refused(prompt_tokens=1, context_tokens=10**6, sampling=Sampling(max_tokens=size)).reason is Reason.INVALID


def test_a_refused_step_uses_nothing_of_any_limit() -> None:
    desk = Desk(requests_per_minute=1, tokens_per_minute=100, concurrent_max=1)
    for _ in range(10):
        desk.refused(priority=50)
    desk.admitted()


def test_a_step_that_is_under_way_or_was_settled_is_not_taken_again() -> None:
    desk = Desk()
    desk.admitted("a")
    assert desk.submit("a") == []
    desk.settle("a")
    assert desk.submit("a") == []


def test_a_step_that_was_refused_is_not_taken_again_since_its_reader_has_seen_the_end() -> None:
    desk = Desk(requests_per_minute=1)
    desk.admitted("a")
    desk.refused("b")
    desk.now += 60 * SECOND
    assert desk.submit("b") == []
    assert list(desk.state.in_flight) == ["a"]
    desk.admitted("c")


def test_only_so_many_refused_steps_are_remembered() -> None:
    desk = Desk(requests_per_minute=1)
    desk.admitted("a")
    for index in range(SETTLED_KEPT + 1):
        desk.refused(f"n{index}")
    assert len(desk.state.refused) == SETTLED_KEPT


def test_only_so_many_settled_steps_are_remembered() -> None:
    desk = Desk()
    for index in range(SETTLED_KEPT + 1):
        desk.admitted(f"n{index}")
        desk.settle(f"n{index}")
    assert len(desk.state.settled) == SETTLED_KEPT
    desk.admitted("n0")


def test_a_settled_step_is_remembered_for_less_time_than_its_output_is_kept() -> None:
    assert OUT.max_age_s * SECOND > REMEMBERED_NS
    desk = Desk()
    desk.admitted("a")
    desk.settle("a")
    desk.now += REMEMBERED_NS + SWEEP_NS
    desk.take(Tick())
    assert desk.state.settled == {}
    desk.admitted("a")


def test_a_step_whose_settlement_never_comes_is_forgotten_after_its_deadline() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a", timeout_ms=1_000)
    desk.now += 1 * SECOND + GRACE_NS + SWEEP_NS
    desk.take(Tick())
    assert desk.state.in_flight == {}
    desk.admitted("b")
    desk.settle("a")
    assert desk.state.tenants[TenantId("acme")].running == 1


def test_a_tenant_with_nothing_in_use_leaves_no_state_behind() -> None:
    desk = Desk(requests_per_minute=2, tokens_per_minute=100)
    desk.admitted("a")
    desk.settle("a")
    desk.now += 61 * SECOND
    desk.take(Tick())
    assert desk.state.tenants == {}
    assert wake_ns(desk.state, desk.config) is None


def test_the_timeout_is_the_callers_within_the_fleets_bound() -> None:
    desk = Desk(settings={"timeout_ms": 5_000, "timeout_max_ms": 60_000})
    assert desk.admitted().job.deadline_ns == NOW + 5 * SECOND
    assert desk.admitted(timeout_ms=60_000).job.deadline_ns == NOW + 60 * SECOND
    assert desk.refused(timeout_ms=60_001).param == "timeout_ms"


@pytest.mark.parametrize("settings", [{"timeout_max_ms": 1}, {"timeout_ms": 3_600_001}, {"timeout_max_ms": 86_400_001}])
def test_a_bound_of_timeouts_that_no_step_could_meet_or_name_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"timeout|86400000"):
        msgspec.convert(settings, AdmissionConfig)


def test_the_longest_timeout_that_can_be_allowed_is_the_longest_that_can_be_named() -> None:
    [submission] = [field.type for field in msgspec.structs.fields(Submission) if field.name == "timeout_ms"]
    assert msgspec.convert(86_400_000, submission) == msgspec.convert({"timeout_max_ms": 86_400_000}, AdmissionConfig).timeout_max_ms
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(86_400_001, submission)


def test_a_deadline_that_the_queue_makes_unreachable_is_refused_with_the_time_to_retry() -> None:
    desk = Desk()
    desk.fleet(decode_tokens_per_s=10)
    desk.queue(drain_ms=8_000)
    desk.admitted(timeout_ms=8_100)
    problem = desk.refused(timeout_ms=6_000)
    assert (problem.reason, problem.retry_after_ms) == (Reason.DEADLINE_UNREACHABLE, 2_100)


def test_an_output_that_cannot_end_early_counts_in_full() -> None:
    desk = Desk()
    desk.fleet(decode_tokens_per_s=10)
    desk.queue()
    problem = desk.refused(timeout_ms=4_000, sampling=Sampling(max_tokens=50, ignore_eos=True))
    assert (problem.reason, problem.param, problem.retry_after_ms) == (Reason.INVALID, "timeout_ms", 0), "coming back is no use"
    desk.refused(timeout_ms=4_000, sampling=Sampling(max_tokens=50, min_tokens=41))
    desk.admitted(timeout_ms=4_000, sampling=Sampling(max_tokens=50, ignore_eos=True, stop=["x"]))
    desk.admitted(timeout_ms=4_000, sampling=Sampling(max_tokens=50))


def test_the_shortest_of_several_queues_counts() -> None:
    desk = Desk()
    desk.fleet(cell="a")
    desk.fleet(cell="b")
    desk.queue(cell="a", drain_ms=60_000)
    desk.queue(cell="b", drain_ms=100)
    desk.admitted(timeout_ms=1_000)


def test_an_old_report_refuses_nobody() -> None:
    desk = Desk()
    desk.fleet()
    desk.queue(drain_ms=60_000, depth=1_000_000)
    desk.now += 5 * SECOND + 1
    desk.admitted(timeout_ms=1_000)


def test_a_full_queue_is_refused_until_a_report_says_otherwise() -> None:
    desk = Desk(settings={"queue_depth_max": 100})
    desk.fleet()
    desk.queue(depth=100, drain_ms=3_000)
    problem = desk.refused()
    assert (problem.reason, problem.retry_after_ms) == (Reason.QUEUE_FULL, 3_000)
    desk.queue(depth=99)
    desk.admitted()


def test_no_more_steps_than_the_table_holds_are_under_way() -> None:
    desk = Desk(settings={"in_flight_max": 2})
    desk.admitted("a")
    desk.admitted("b")
    assert desk.refused().reason is Reason.QUEUE_FULL
    desk.settle("a")
    desk.admitted()


def test_a_lowered_limit_holds_at_once_for_a_state_that_was_built_under_another() -> None:
    desk = Desk(requests_per_minute=600)
    desk.admitted()
    desk.config = AdmissionConfig(tenants={"acme": Terms(keys=[KEY], requests_per_minute=1)})
    assert desk.refused().retry_after_ms == 100
    desk.now += 100 * MS
    desk.admitted()
    assert desk.refused().retry_after_ms == 60_000


def test_the_state_survives_a_snapshot() -> None:
    desk = Desk(requests_per_minute=100, tokens_per_minute=10_000)
    desk.fleet()
    desk.queue(depth=3)
    for name in "abc":
        desk.admitted(name)
    desk.settle("b", output_tokens=4)
    assert msgspec.json.decode(msgspec.json.encode(desk.state), type=State) == desk.state
