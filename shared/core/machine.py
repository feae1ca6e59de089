"""The decider protocol: what every deciding service is, to all three drivers (live, replay, simulate).

    apply(state, event, now_ns)              fold one fact into the state
    decide(state, event, now_ns, config)     what follows from it; called after `event` was applied; must not change the state

What `decide` returns is folded by `apply` as well, in order, before the next input. `now_ns` is the decider's clock when it took the
input; it is recorded with the input, so that a replay sees the same. Neither may read a clock, a random source or the outside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.ids import MessageId

StateT = TypeVar("StateT", bound=msgspec.Struct)
ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Machine(Generic[StateT, ConfigT]):
    """One deciding service, as its drivers see it."""

    name: str
    state: type[StateT]  # a msgspec.Struct that can be encoded and decoded: it is what snapshots hold
    config: type[ConfigT]
    inputs: Any  # the union of the message types that it takes, Tick included
    start: Callable[[ConfigT], StateT]
    apply: Callable[[StateT, Message, int], None]
    decide: Callable[[StateT, Message, int, ConfigT], list[Message]]
    wake_ns: Callable[[StateT, ConfigT], int | None]  # when a Tick is needed at the latest, None: not before the next input


ENCODER = msgspec.json.Encoder()


def stamp(outputs: Iterable[Message], source: Message, prefix: str, now_ns: int) -> list[bytes]:
    """Give each decided message its id (`<prefix>.<index>`), cause and time, and encode it."""
    encoded = []
    for index, message in enumerate(outputs):
        msgspec.structs.force_setattr(message, "id", MessageId(f"{prefix}.{index}"))
        msgspec.structs.force_setattr(message, "cause", source.id)
        msgspec.structs.force_setattr(message, "time_ns", now_ns)
        encoded.append(ENCODER.encode(message))
    return encoded


def take(  # noqa: PLR0913  # one decision's whole context
    machine: Machine[StateT, ConfigT], state: StateT, event: Message, now_ns: int, config: ConfigT, prefix: str
) -> tuple[list[Message], list[bytes]]:
    """Take one input: fold it, decide, stamp what was decided with ids that begin with `prefix`, fold that. Decisions and their bytes."""
    machine.apply(state, event, now_ns)
    outputs = machine.decide(state, event, now_ns, config)
    encoded = stamp(outputs, event, prefix, now_ns)
    for output in outputs:
        machine.apply(state, output, now_ns)
    return outputs, encoded


def step(machine: Machine[StateT, ConfigT], state: StateT, event: Message, now_ns: int, config: ConfigT) -> list[Message]:
    """`take` without ids, for whoever looks at decisions alone."""
    machine.apply(state, event, now_ns)
    outputs = machine.decide(state, event, now_ns, config)
    for output in outputs:
        machine.apply(state, output, now_ns)
    return outputs
