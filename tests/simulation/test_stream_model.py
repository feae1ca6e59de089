"""The model of a stream does what nats-server does (tests/integration/test_bus.py has the same of the real one)."""

from shared.contracts.streams import FLEET, OUT, STEPS
from shared.runtime.nats_client import write_headers
from shared.sim.nats_server import named
from shared.sim.streams import Kept, StreamModel, matches

SECOND = 10**9


def _store(stream: StreamModel, subject: str, at_s: float = 0.0, **about: str) -> Kept:
    headers = {"Nats-Msg-Id": about["msg_id"]} if "msg_id" in about else {}
    if "expect" in about:
        headers["Nats-Expected-Last-Subject-Sequence"] = about["expect"]
    raw = write_headers(headers)
    return stream.store(subject, b"{}", raw, named(raw) if raw else {}, int(at_s * SECOND))


def test_a_second_copy_is_noticed_within_the_window_and_not_behind_it() -> None:
    stream = StreamModel(STEPS)
    assert _store(stream, "legato.submit.s", msg_id="a") == Kept(1)
    assert _store(stream, "legato.submit.s", at_s=119, msg_id="a") == Kept(1, duplicate=True)
    assert _store(stream, "legato.submit.s", at_s=121, msg_id="a") == Kept(2)


def test_the_expectation_is_looked_at_before_copies_are() -> None:
    stream = StreamModel(OUT)
    assert _store(stream, "legato.outbox.s", msg_id="a", expect="0") == Kept(1)
    assert _store(stream, "legato.outbox.s", msg_id="a", expect="0").refused
    assert _store(stream, "legato.outbox.s", msg_id="b", expect="1") == Kept(2)
    assert _store(stream, "legato.outbox.other", msg_id="c", expect="0") == Kept(3)
    assert stream.messages[2].before == 1
    assert stream.messages[2].subject == "legato.out.s"


def test_of_facts_about_the_fleet_the_last_one_stays() -> None:
    stream = StreamModel(FLEET)
    for worker in ("a", "b", "a"):
        _store(stream, f"legato.fleet.worker.{worker}")
    assert [message.seq for message in stream.latest(("legato.fleet.worker.*",))] == [2, 3]
    assert stream.next_from(1, ("legato.fleet.worker.*",)) == stream.messages[2]


def test_a_purge_takes_what_lies_before() -> None:
    stream = StreamModel(STEPS)
    for step in "abc":
        _store(stream, f"legato.submit.{step}")
    stream.purge(3)
    assert list(stream.messages) == [3]
    assert stream.last("legato.submit.a") is None
    assert stream.last("legato.submit.*") == stream.messages[3]


def test_patterns_match_as_those_of_nats_do() -> None:
    assert matches("legato.step.*.ended.*", "legato.step.s.ended.c")
    assert not matches("legato.step.*.ended.*", "legato.step.s.ended")
    assert not matches("legato.step.*", "legato.step.s.ended")
    assert matches("legato.step.>", "legato.step.s.ended")
    assert not matches("legato.step.>", "legato.step")
