"""What clients of NVIDIA Dynamo send: honoured, a hint, or refused by name."""

import json
from typing import Any

import pytest

from services.gateway.dialect import Asked, read_request
from services.gateway.nvext import NEUTRAL, SESSION_HEADERS, NvExt
from shared.contracts.outcomes import Problem, Reason
from shared.core.inputs import fingerprint, session_workflow

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def read(nvext: Any = None, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Asked | Problem:
    given = BODY | (body or {}) | ({} if nvext is None else {"nvext": nvext})
    return read_request(json.dumps(given).encode(), headers or {}, chat=True)


def taken(nvext: Any = None, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Asked:
    asked = read(nvext, body, headers)
    assert isinstance(asked, Asked), asked
    return asked


def refused(nvext: Any = None, headers: dict[str, str] | None = None) -> Problem:
    problem = read(nvext, headers=headers)
    assert isinstance(problem, Problem), problem
    return problem


def test_a_priority_is_the_one_of_the_header() -> None:
    hinted = taken({"agent_hints": {"priority": 5}})
    assert hinted.data == taken(headers={"X-Legato-Priority": "5"}).data
    assert taken({"agent_hints": {"priority": 5}}, headers={"X-Legato-Priority": "5"}).submission.priority == 5
    assert refused({"agent_hints": {"priority": 5}}, {"X-Legato-Priority": "6"}).param == "nvext.agent_hints.priority"


def test_greedy_sampling_is_temperature_zero_whatever_else_is_given() -> None:
    assert taken({"greed_sampling": True}, {"temperature": 0.7}).submission == taken(None, {"temperature": 0}).submission
    assert taken({"greed_sampling": False}, {"temperature": 0.7}).submission.sampling.temperature == 0.7


@pytest.mark.parametrize(
    "nvext",
    [
        {},
        {"agent_hints": {}},
        {"agent_hints": {"osl": 1024, "strict_priority": 3, "speculative_prefill": True, "latency_sensitivity": 0.5}},
        {"agent_hints": {"priority": None, "osl": None}},
        {"request_timestamp_ms": 1.5},
        {"annotations": [], "extra_fields": [], "use_raw_prompt": False, "token_data": None},
    ],
)
def test_what_is_a_mere_hint_changes_nothing_of_a_submission(nvext: dict[str, Any]) -> None:
    assert taken(nvext) == taken()


@pytest.mark.parametrize(
    ("nvext", "param"),
    [
        ({"agent_hints": {"priority": 101}}, "nvext.agent_hints.priority"),
        ({"agent_hints": {"priority": -101}}, "nvext.agent_hints.priority"),
        ({"agent_hints": {"priority": 1.5}}, "nvext.agent_hints.priority"),
        ({"agent_hints": {"osl": -1}}, "nvext.agent_hints.osl"),
        ({"agent_hints": {"osl": 2**32}}, "nvext.agent_hints.osl"),
        ({"agent_hints": {"osl": "HIGH"}}, "nvext.agent_hints.osl"),
        ({"agent_hints": {"strict_priority": -1}}, "nvext.agent_hints.strict_priority"),
        ({"agent_hints": {"speculative_prefill": 1}}, "nvext.agent_hints.speculative_prefill"),
        ({"agent_hints": []}, "nvext.agent_hints"),
        ({"agent_context": {"session_id": ""}}, "nvext.agent_context.session_id"),
        ({"greed_sampling": "yes"}, "nvext.greed_sampling"),
        ([], "nvext"),
    ],
)
def test_a_malformed_field_is_refused_by_its_name(nvext: Any, param: str) -> None:
    problem = refused(nvext)
    assert (problem.reason, problem.param) == (Reason.INVALID, param)


@pytest.mark.parametrize("nvext", [{"agent_hints": {"prefix_id": "a"}}, {"agent_hint": {}}, {"agent_context": {"user": "x"}}])
def test_what_dynamo_does_not_document_is_refused_by_its_name(nvext: dict[str, Any]) -> None:
    (outer, inner), *_ = nvext.items()
    assert refused(nvext).param == ".".join(["nvext", outer, *inner])
    assert refused(nvext).reason is Reason.UNSUPPORTED


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_legato_does_not_do_is_refused_by_its_name(name: str) -> None:
    value: Any = {"use_raw_prompt": True, "annotations": ["a"], "extra_fields": ["timing"]}.get(name, 1)
    assert (refused({name: value}).reason, refused({name: value}).param) == (Reason.UNSUPPORTED, f"nvext.{name}")


def test_every_field_is_either_understood_or_refused() -> None:
    assert set(NvExt.__struct_fields__) == {*NEUTRAL, "agent_hints", "agent_context", "greed_sampling", "request_timestamp_ms"}


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_a_session_groups_steps_and_names_none(name: str) -> None:
    asked = taken(headers={name: "research-run-42:researcher"})
    assert asked.belonging is not None
    assert asked.belonging.session
    assert (asked.submission.workflow, asked.submission.step_key) == (session_workflow("", "research-run-42:researcher"), "")
    assert fingerprint(asked.submission) == fingerprint(taken().submission)


def test_the_sessions_of_two_keys_are_two_workflows() -> None:
    one, other = (taken(headers={"X-Dynamo-Session-ID": "a", "Authorization": f"Bearer {key}"}).submission.workflow for key in "ab")
    assert one != other


def test_agents_of_one_tree_are_of_one_workflow() -> None:
    root = taken(headers={"X-Dynamo-Session-ID": "root"}).submission.workflow
    assert taken(headers={"X-Dynamo-Session-ID": "child", "X-Dynamo-Parent-Session-ID": "root"}).submission.workflow == root
    assert taken({"agent_context": {"session_type_id": "t", "session_id": "root", "trajectory_id": "x"}}).submission.workflow == root
    assert taken({"agent_context": {"session_id": "other"}}, headers={"X-Dynamo-Session-ID": "root"}).submission.workflow == root
    claude = {"X-Claude-Code-Session-Id": "root", "X-Claude-Code-Agent-Id": "child"}
    assert taken(headers=claude).submission.workflow == root


def test_a_workflow_of_its_own_goes_before_a_session() -> None:
    asked = taken(headers={"X-Legato-Workflow": "trip", "X-Dynamo-Session-ID": "a"})
    assert asked.submission.workflow == "trip"


@pytest.mark.parametrize("text", ["x" * 257, "a\x01b", "\udcff"])
def test_a_session_that_cannot_be_is_refused_by_the_header_that_names_it(text: str) -> None:
    assert refused(headers={"X-Dynamo-Session-ID": text}).param == "X-Dynamo-Session-ID"
