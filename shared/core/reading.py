"""From bytes that anybody may have published to a message of ours, or the reason why they are none."""

from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import msgspec

from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.fleet import WorkerBeat
from shared.contracts.ids import is_subject_token
from shared.contracts.steps import AttemptEnded
from shared.core.errors import LegatoError

PLACES = ("step", "cell", "worker", "pool")  # fields that stand in subjects
REASON_CHARS_MAX = 500  # of what msgspec says, which quotes values whole

MessageT = TypeVar("MessageT", bound=Message)


class NoMessage(LegatoError):
    """The bytes are no message that anybody could act on."""


def read(decoder: msgspec.json.Decoder[MessageT], data: bytes) -> MessageT:
    """The message. Its ids and its trace can be passed on: in a subject or a header, blanks and line ends would be commands to NATS.
    Raises NoMessage."""
    try:
        message = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:  # the second: nested too deeply
        raise NoMessage(str(error)[:REASON_CHARS_MAX]) from error
    for name in _names(message):
        if not is_subject_token(name):
            raise NoMessage(f"{name[:100]!r} is no id: 1 to 128 letters, digits, _ and -")
    if not (message.trace.isascii() and message.trace.isprintable()):
        raise NoMessage(f"{message.trace[:100]!r} is no trace")
    return message


def brief(message: Message) -> Message:
    """Without what an attempt said: whoever decides needs the rest, and no journal should hold all outputs once more."""
    return msgspec.structs.replace(message, tokens=[], text="") if isinstance(message, AttemptEnded) else message


def _names(message: Message) -> Iterator[str]:
    places, needs_step = _shape(type(message))
    for place in places:
        name = getattr(message, place)
        if name or (needs_step and place == "step"):
            yield name
    if isinstance(message, WorkerBeat):
        yield from (each.step for each in message.running)


@cache
def _shape(kind: type[Message]) -> tuple[tuple[str, ...], bool]:
    """Which of the places a kind of message has, and whether it is about a step."""
    known = KIND.get(kind)
    about_step = known is not None and known.pattern.startswith(("legato.step.", "legato.prompt."))
    return tuple(place for place in PLACES if place in kind.__struct_fields__), about_step
