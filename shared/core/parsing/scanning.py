"""JSON that arrives in pieces: where a call begins, and where its arguments end. Pure.

A call is read as it comes when it has the form that models are taught, `{"name": "f", "arguments": {` (or `parameters`; `id` and `type` may
stand before): then its name is known before its arguments are.
"""

import json
import re
from enum import Enum

import msgspec

NAME_CHARS_MAX = 256  # of a function, as it is written
_BEFORE = ("id", "type")
_ARGUMENTS = ("arguments", "parameters")
_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(rf'"((?:[^"\\\x00-\x1f]|\\.){{0,{NAME_CHARS_MAX}}})"', re.DOTALL)
_OPEN_STRING = re.compile(rf'"(?:[^"\\\x00-\x1f]|\\.){{0,{NAME_CHARS_MAX}}}\\?', re.DOTALL)
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class Verdict(Enum):
    """Of a text that may be cut: what follows can never change NO."""

    NO = "no"
    OPEN = "open"  # more must come before this can be said


class Opening(msgspec.Struct, frozen=True):
    """A call has begun: its name, and where the `{` of its arguments stands."""

    name: str
    at: int


def opening(text: str, at: int = 0) -> Opening | Verdict:
    """Whether a call begins at this place."""
    cursor = _Cursor(text, at)
    verdict = cursor.literal("{")
    while verdict is None:
        key = cursor.string()
        if isinstance(key, Verdict):
            return key
        verdict = cursor.literal(":")
        if verdict is not None:
            break
        if key == "name":
            return _named(cursor)
        if key not in _BEFORE:
            return Verdict.NO
        other = cursor.string()
        verdict = other if isinstance(other, Verdict) else cursor.literal(",")
    return verdict


def _named(cursor: "_Cursor") -> Opening | Verdict:
    name = cursor.string()
    if isinstance(name, Verdict):
        return name
    if not name:
        return Verdict.NO
    verdict = cursor.literal(",")
    key = verdict if verdict is not None else cursor.string()
    if isinstance(key, Verdict):
        return key
    if key not in _ARGUMENTS:
        return Verdict.NO
    verdict = cursor.literal(":") or cursor.literal("{")
    return verdict or Opening(name, cursor.at - 1)


class _Cursor:
    """Goes forward over blanks and what is expected; a Verdict where that is not there."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self.at = at

    def literal(self, character: str) -> Verdict | None:
        self._skip()
        if self.at == len(self._text):
            return Verdict.OPEN
        if self._text[self.at] != character:
            return Verdict.NO
        self.at += 1
        return None

    def string(self) -> str | Verdict:
        self._skip()
        if self.at == len(self._text):
            return Verdict.OPEN
        found = _STRING.match(self._text, self.at)
        if found is None:
            return Verdict.OPEN if _OPEN_STRING.fullmatch(self._text, self.at) else Verdict.NO
        self.at = found.end()
        try:
            text: str = json.loads(found[0])
            text.encode()  # lone surrogates are no text
        except ValueError:
            return Verdict.NO
        return text

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self.at)
        self.at = found.end() if found else self.at


class Value:
    """An object that arrives in pieces, from its `{` on. Brackets are counted, and not compared."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Behind which character of the next piece the object ends; None: not in this piece."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_INSIDE if self._quoted else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            if found[0] == "\\":
                self._escaped = True
            elif found[0] == '"':
                self._quoted = not self._quoted
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth == 0:
                    return at
        return None
