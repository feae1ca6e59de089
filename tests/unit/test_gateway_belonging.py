"""The headers that say which workflow a request belongs to."""

import pytest

from services.gateway.belonging import Belonging, read_belonging
from shared.core.workflows import Terms, Unfit

FULL = {
    "X-Legato-Workflow": "q3-acme",
    "X-Legato-Step-Key": "plan the trip",
    "X-Legato-Workflow-Kind": "Bericht für alle",
    "X-Legato-Deadline-S": "90.5",
    "X-Legato-Steps-Planned": "7",
    "X-Legato-Budget-Usd": "2.50",
}


def test_no_headers_no_workflow() -> None:
    assert read_belonging({}, "", "") is None


def test_all_headers_arrive() -> None:
    terms = Terms(deadline_s=90.5, steps_planned=7, budget_usd=2.5)
    expected = Belonging(workflow="q3-acme", name="plan the trip", kind="Bericht für alle", terms=terms)
    assert read_belonging(FULL, "", "") == expected


def test_a_workflow_may_come_alone() -> None:
    assert read_belonging({"X-Legato-Workflow": "a"}, "", "") == Belonging(workflow="a")


@pytest.mark.parametrize("name", [name for name in FULL if name != "X-Legato-Workflow"])
def test_what_is_said_of_a_workflow_needs_one(name: str) -> None:
    with pytest.raises(Unfit, match="needs X-Legato-Workflow") as caught:
        read_belonging({name: FULL[name]}, "", "")
    assert caught.value.problem.param == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-Legato-Workflow", "a.b"),
        ("X-Legato-Workflow", "x" * 129),
        ("X-Legato-Workflow", "\xe4"),
        ("X-Legato-Step-Key", ""),
        ("X-Legato-Step-Key", " "),
        ("X-Legato-Step-Key", "x" * 257),
        ("X-Legato-Step-Key", "\udcff"),
        ("X-Legato-Workflow-Kind", "x" * 129),
        ("X-Legato-Workflow-Kind", "\udcff"),
        ("X-Legato-Deadline-S", "-1"),
        ("X-Legato-Deadline-S", "inf"),
        ("X-Legato-Deadline-S", "1e3"),
        ("X-Legato-Deadline-S", "315360001"),
        ("X-Legato-Steps-Planned", "-1"),
        ("X-Legato-Steps-Planned", "2147483648"),
        ("X-Legato-Steps-Planned", "1.0"),
        ("X-Legato-Budget-Usd", "0"),
        ("X-Legato-Budget-Usd", "nan"),
        ("X-Legato-Budget-Usd", "$5"),
        ("X-Legato-Budget-Usd", "999999999999"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_by_its_name(name: str, text: str) -> None:
    with pytest.raises(Unfit, match=name) as caught:
        read_belonging(FULL | {name: text}, "", "")
    assert caught.value.problem.param == name
