"""Clients of a simulated fleet: what they count as seen before, and how they try again."""

from random import Random

import msgspec
import pytest

from legato.simulate.bus import Bus
from legato.simulate.clients import BACKOFF_MAX_S, Clients, Seen
from legato.simulate.scenario import Network, Scenario
from legato.simulate.steps import Step
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.sim.heap import Heap
from shared.sim.measured import Measured
from shared.sim.programs import Behaviour, Call, Chain, Program, Segment

SCENARIO = msgspec.convert(
    {"name": "t", "pools": {"a": {"law": "8b-h100"}}, "workload": [{"kind": "single"}]},
    Scenario,
)


def chain(content: int, blocks: int) -> Chain:
    return Chain((Segment(content, 16 * blocks),), 16)


def wait_s(tries: int, retry_after_ms: int = 0, rude: bool = False) -> float:
    """Without the chance that is added."""

    class Even(Random):
        def random(self) -> float:
            return 0.0

    clients = Clients(Bus(Heap(), Network(), Even()), Measured(), Even(), SCENARIO)
    call = Call(key="c", prompt=(Segment(1, 10),), output=Segment(2, 5))
    program = Program(id="p", kind="k", begins_s=0.0, calls=(call,), behaviour=Behaviour(tries=100, retry_s=1.0, rude=rude))
    step = Step(StepId("s"), program, call, 16)
    step.end(Status.REFUSED, Problem(reason=Reason.RATE_LIMITED, message="later", retry_after_ms=retry_after_ms))
    return clients.wait_s(program, step, tries)


def test_what_was_seen_need_not_be_computed_again_but_for_one_token() -> None:
    seen = Seen(16)
    assert seen.missing_tokens(chain(1, 4), 64) == 64
    assert seen.missing_tokens(chain(1, 4), 64) == 1
    assert seen.missing_tokens(chain(2, 4), 64) == 64


def test_what_was_seen_is_bounded_and_the_oldest_goes_first() -> None:
    seen = Seen(16, blocks_max=16)
    for content in range(5):
        seen.missing_tokens(chain(content, 4), 64)
    assert seen.missing_tokens(chain(4, 4), 64) == 1
    assert seen.missing_tokens(chain(0, 4), 64) > 1


@pytest.mark.parametrize(("tries", "expected"), [(1, 1.0), (2, 2.0), (4, 8.0), (90, BACKOFF_MAX_S)])
def test_each_wait_is_twice_the_one_before_up_to_a_minute(tries: int, expected: float) -> None:
    assert wait_s(tries) == expected


def test_what_the_answer_says_is_kept_to_even_if_it_is_longer_and_the_rude_do_not_listen() -> None:
    assert wait_s(1, retry_after_ms=90_000) == 90.0
    assert wait_s(3, retry_after_ms=90_000, rude=True) == 1.0
