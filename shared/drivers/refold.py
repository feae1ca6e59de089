"""The pure half of replay: takes recorded inputs again, one by one, and compares what is decided with what was, byte for byte."""

import difflib
from typing import Any, Generic

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.journal import Entry
from shared.core.errors import LegatoError
from shared.core.machine import ConfigT, Machine, StateT, stamp
from shared.drivers.journal import output_decoder

FIELDS_MAX = 20  # of one difference that are named


class ReplayError(LegatoError):
    """A journal cannot be replayed: it is not there, lacks what is needed, or no longer fits the code."""


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field of an output, as JSON text; empty where that side has no such field. `path` like `job.sampling.stop[0]`."""

    path: str
    recorded: str
    replayed: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One output that came out differently. A side that decided fewer outputs has an empty text."""

    number: int  # of the entry
    index: int  # of the output
    now_ns: int
    input_type: str
    step: str
    recorded: str
    replayed: str
    fields: list[FieldDifference]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One input taken again."""

    event: Message
    outputs: list[bytes]  # as decided now
    same: bool


class Refold(Generic[StateT, ConfigT]):
    """A machine on its recorded way. What was recorded is always what is folded, so that one difference does not lead to others."""

    def __init__(self, machine: Machine[StateT, ConfigT], state: StateT, partition: str) -> None:
        self.machine = machine
        self.state = state
        self._partition = partition
        self._inputs: msgspec.json.Decoder[Any] = msgspec.json.Decoder(machine.inputs)
        self._outputs = output_decoder()

    def fold(self, entry: Entry) -> None:
        """Fold an entry without deciding anew. Raises ReplayError."""
        try:
            self.machine.apply(self.state, self._inputs.decode(entry.input), entry.now_ns)
            self._fold_recorded(entry)
        except Exception as error:
            raise self._failed(entry, error) from error

    def take(self, entry: Entry, epoch: int, config: ConfigT) -> Taken:
        """Decide an entry's input again, and fold what was recorded. Raises ReplayError where code and journal no longer fit."""
        try:
            event: Message = self._inputs.decode(entry.input)
            self.machine.apply(self.state, event, entry.now_ns)
            outputs = self.machine.decide(self.state, event, entry.now_ns, config)
            encoded = stamp(outputs, event, f"{self.machine.name}.{self._partition}.{epoch}.{entry.number}", entry.now_ns)
            same = encoded == [bytes(raw) for raw in entry.outputs]
            if same:
                for output in outputs:
                    self.machine.apply(self.state, output, entry.now_ns)
            else:
                self._fold_recorded(entry)
        except Exception as error:
            raise self._failed(entry, error) from error
        return Taken(event=event, outputs=encoded, same=same)

    def _fold_recorded(self, entry: Entry) -> None:
        for raw in entry.outputs:
            self.machine.apply(self.state, self._outputs.decode(raw), entry.now_ns)

    def _failed(self, entry: Entry, error: Exception) -> ReplayError:
        return ReplayError(f"{self.machine.name} cannot take its entry {entry.number} again: {type(error).__name__}: {error}")


def differences(entry: Entry, taken: Taken) -> list[Difference]:
    """Every output of an entry that is not the same on both sides, in order."""
    found = []
    for index in range(max(len(entry.outputs), len(taken.outputs))):
        recorded = bytes(entry.outputs[index]) if index < len(entry.outputs) else b""
        replayed = taken.outputs[index] if index < len(taken.outputs) else b""
        if recorded != replayed:
            found.append(
                Difference(
                    number=entry.number,
                    index=index,
                    now_ns=entry.now_ns,
                    input_type=str(taken.event.__struct_config__.tag),
                    step=taken.event.step,
                    recorded=recorded.decode(),
                    replayed=replayed.decode(),
                    fields=compare(recorded, replayed),
                )
            )
    return found


def compare(recorded: bytes, replayed: bytes) -> list[FieldDifference]:
    """The fields in which two JSON objects differ, at most FIELDS_MAX; none where one side is empty."""
    found: list[FieldDifference] = []
    if recorded and replayed:
        _compare("", msgspec.json.decode(recorded), msgspec.json.decode(replayed), found)
    return found[:FIELDS_MAX]


_ABSENT = object()


def _compare(path: str, left: Any, right: Any, found: list[FieldDifference]) -> None:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys((*left, *right)):
            _compare(f"{path}.{key}" if path else str(key), left.get(key, _ABSENT), right.get(key, _ABSENT), found)
    elif isinstance(left, list) and isinstance(right, list):
        for index in range(max(len(left), len(right))):
            _compare(f"{path}[{index}]", _at(left, index), _at(right, index), found)
    elif left != right:
        found.append(FieldDifference(path=path, recorded=_text(left), replayed=_text(right)))


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else _ABSENT


def _text(value: Any) -> str:
    return "" if value is _ABSENT else msgspec.json.encode(value).decode()


def overridden(config: ConfigT, settings: list[str]) -> ConfigT:
    """The configuration with `field=value` settings, dots for nested fields, values as in JSON or as bare words. Raises ReplayError."""
    values = msgspec.to_builtins(config)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ReplayError(f"{setting!r} is not a setting; write field=value")
        *parents, last = path.strip().split(".")
        target = values
        for name in parents:
            target = _section(target, name, path)
        _section(target, last, path, leaf=True)
        target[last] = _value(text.strip())
    try:
        return msgspec.convert(values, type(config), strict=False)
    except msgspec.ValidationError as error:
        raise ReplayError(f"this configuration cannot be: {error}") from error


def _section(values: Any, name: str, path: str, leaf: bool = False) -> Any:
    if not isinstance(values, dict) or name not in values:
        known = sorted(values) if isinstance(values, dict) else []
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise ReplayError(f"there is no setting {path!r}; {hint}")
    if not leaf and not isinstance(values[name], dict):
        raise ReplayError(f"{name!r} in {path!r} has no fields of its own")
    return values[name]


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
