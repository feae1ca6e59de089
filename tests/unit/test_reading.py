"""What is taken for a message: nothing whose ids could not be passed on."""

import msgspec
import pytest

from shared.contracts.envelope import Message
from shared.contracts.examples import MESSAGES
from shared.contracts.fleet import WorkerBeat
from shared.contracts.ids import StepId
from shared.contracts.steps import CancelRequested, StepAdmitted
from shared.core.reading import REASON_CHARS_MAX, NoMessage, read

ADMITTED = msgspec.json.Decoder(StepAdmitted)


def example(kind: type[msgspec.Struct], **fields: object) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(next(each for each in MESSAGES if type(each) is kind), **fields))


@pytest.mark.parametrize("message", [each for each in MESSAGES if isinstance(each, Message)], ids=lambda each: type(each).__name__)
def test_every_message_of_ours_is_taken_as_it_is(message: Message) -> None:
    assert read(msgspec.json.Decoder(type(message)), msgspec.json.encode(message)) == message


@pytest.mark.parametrize("step", ["", "a b", "a.b", "*", "a\r\nPUB x 0", "x" * 129])
def test_what_is_about_a_step_must_name_one_that_a_subject_can_hold(step: str) -> None:
    with pytest.raises(NoMessage, match="is no id"):
        read(ADMITTED, example(StepAdmitted, step=StepId(step)))


def test_a_cancellation_and_a_heartbeat_need_no_step() -> None:
    assert read(msgspec.json.Decoder(CancelRequested), b'{"type":"step.cancel"}').step == ""
    assert read(msgspec.json.Decoder(WorkerBeat), example(WorkerBeat, step=StepId(""))).step == ""


def test_the_steps_in_a_heartbeat_are_ids_too() -> None:
    with pytest.raises(NoMessage, match="is no id"):
        read(msgspec.json.Decoder(WorkerBeat), example(WorkerBeat, running=[("a b", 1, 1)]))


def test_a_trace_that_would_end_a_header_is_none() -> None:
    with pytest.raises(NoMessage, match="is no trace"):
        read(ADMITTED, example(StepAdmitted, trace="x\r\nNats-Rollup: all"))


@pytest.mark.parametrize("data", [b'{"x":' * 100_000, b'{"x":' * 100_000 + b"1" + b"}" * 100_000, b'{"type": "' + b"x" * 1_000_000 + b'"}'])
def test_the_reason_is_short_however_long_the_message(data: bytes) -> None:
    with pytest.raises(NoMessage) as error:
        read(ADMITTED, data)
    assert len(str(error.value)) <= REASON_CHARS_MAX
