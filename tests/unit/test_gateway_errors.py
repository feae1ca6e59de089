"""Problems in OpenAI's words."""

import json

import pytest

from services.gateway.errors import STATUS, as_sent, body_of, headers_of, problem_of, status_of
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import End


def test_every_reason_has_a_status() -> None:
    assert sorted(STATUS) == sorted(Reason)


def test_the_error_object_has_openais_shape() -> None:
    problem = Problem(reason=Reason.UNSUPPORTED, message="n is not supported", param="n")
    error = {"message": "n is not supported", "type": "invalid_request_error", "param": "n", "code": "unsupported_parameter"}
    assert json.loads(body_of(problem)) == {"error": error}
    nested = Problem(reason=Reason.INVALID, message="x", param="sampling.logit_bias")
    assert json.loads(body_of(nested))["error"]["param"] == "logit_bias"
    assert json.loads(body_of(Problem(reason=Reason.INTERNAL, message="x")))["error"]["param"] is None


def test_a_problem_names_the_parameter_as_the_client_sent_it() -> None:
    fleets = Problem(reason=Reason.UNSUPPORTED, message="m cannot take json_schema on this engine", param="sampling.json_schema")
    told = as_sent(fleets, {"json_schema": "response_format", "max_tokens": "max_tokens"})
    assert (told.message, told.param) == ("m cannot take response_format on this engine", "response_format")
    assert as_sent(fleets, {"max_tokens": "max_completion_tokens"}) == fleets
    assert as_sent(fleets, {}) == fleets


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(Reason.UNAUTHENTICATED, "invalid_request_error"), (Reason.QUEUE_FULL, "rate_limit_error"), (Reason.NO_CAPACITY, "server_error")],
)
def test_the_type_follows_the_status(reason: Reason, kind: str) -> None:
    assert json.loads(body_of(Problem(reason=reason, message="x")))["error"]["type"] == kind


@pytest.mark.parametrize(("wait_ms", "seconds"), [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")])
def test_retry_after_is_rounded_up_to_whole_seconds(wait_ms: int, seconds: str) -> None:
    headers = headers_of(Problem(reason=Reason.RATE_LIMITED, message="x", retry_after_ms=wait_ms))
    assert headers == {"Retry-After": seconds, "retry-after-ms": str(max(wait_ms, 1_000))}


@pytest.mark.parametrize("reason", [Reason.INVALID, Reason.UNAUTHENTICATED, Reason.INTERNAL, Reason.DEADLINE_PASSED, Reason.CANCELLED])
def test_where_coming_back_does_not_help_nobody_is_asked_to(reason: Reason) -> None:
    assert headers_of(Problem(reason=reason, message="x", retry_after_ms=5_000)) == {}


def test_an_end_without_a_problem_is_given_one_unless_it_succeeded() -> None:
    assert problem_of(End(status=Status.SUCCEEDED)) is None
    for status, code in ((Status.CANCELLED, 499), (Status.EXPIRED, 504), (Status.SHED, 503), (Status.FAILED, 500)):
        problem = problem_of(End(status=status))
        assert problem is not None
        assert status_of(problem) == code


def test_a_spent_budget_is_told_as_openai_tells_it_and_tried_again_only_where_that_may_help() -> None:
    spent = Problem(reason=Reason.BUDGET_SPENT, message="x")
    error = json.loads(body_of(spent))["error"]
    assert (status_of(spent), error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert headers_of(spent) == {"x-should-retry": "false"}
    assert headers_of(Problem(reason=Reason.BUDGET_SPENT, message="x", retry_after_ms=1_500))["retry-after-ms"] == "1500"
