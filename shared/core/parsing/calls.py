"""Calls of functions within a text, for models that write them as JSON. Pure.

    Hermes, Qwen   <tool_call>{"name": "f", "arguments": {…}}</tool_call>, any number of them
    Mistral        [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]
    Llama 3        {"name": "f", "parameters": {…}}, several with `;` between them; <|python_tag|> may stand before

Sources: the models' chat templates (NousResearch/Hermes-Function-Calling, Qwen2.5 and Qwen3; mistralai/Mistral-7B-Instruct-v0.3;
meta-llama/Llama-3.1, "JSON based tool calling"). [TOOL_CALLS] and <|python_tag|> are special tokens, which an output does not show: where
the text begins with the calls themselves, they are taken for calls all the same.

What turns out to be no call is content, and so is all that stands beside calls, but for blanks between a call and a marker or the end
of the text. A call whose name is known is told at once; what follows in its arguments is told as it is.
"""

import msgspec

from shared.core.parsing.deltas import Delta, undecided
from shared.core.parsing.scanning import Opening, Value, Verdict, opening

HELD_CHARS_MAX = 65_536  # of what may become a call, and cannot be told yet


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes calls. `bare`: a text may begin with them, without the marker. `begin` and `finish` stand around all calls of
    one marker, `between` between them, `end` behind them."""

    marker: str = ""
    end: str = ""
    begin: str = ""
    between: str = ""
    finish: str = ""
    bare: bool = False


HERMES = Format(marker="<tool_call>", end="</tool_call>")
MISTRAL = Format(marker="[TOOL_CALLS]", begin="[", between=",", finish="]", bare=True)
LLAMA3 = Format(marker="<|python_tag|>", between=";", bare=True)
ARRAY = Format(begin="[", between=",", finish="]", bare=True)


class _Whole(msgspec.Struct, frozen=True):
    """A call in whatever order it was written."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")

    def text(self) -> str:
        """Of its arguments, which some models write as a JSON text within the JSON."""
        raw = bytes(self.arguments) or bytes(self.parameters) or b"null"
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str)
        return "{}" if raw == b"null" else raw.decode()


_WHOLE = msgspec.json.Decoder(_Whole)


class Calls:
    """`names`: of the functions that there are, so that other JSON at the beginning of a text is not taken for a call."""

    def __init__(self, form: Format, names: frozenset[str] | None = None) -> None:
        self._form = form
        self._names = names
        self._text = ""  # not told yet
        self._passed = ""  # blanks and the marker before `_text`: content, unless a call follows
        self._number = -1  # of the newest call
        self._value = Value()
        self._searched = 0
        self._state = self._first if form.bare else self._beside
        self._told: list[Delta] = []

    def push(self, text: str) -> list[Delta]:
        self._text += text
        while self._state():
            pass
        told, self._told = self._told, []
        return told

    def end(self) -> list[Delta]:
        told = self.push("")
        while self._state in (self._first, self._begun, self._next):
            if not self._whole(self._text, len(self._text)):
                self._give_up()
            told += self.push("")
        if self._state == self._closing:
            self._text = self._text.lstrip().removeprefix("}")
        if self._number < 0 or self._text.strip():
            self._content(self._text)
        self._text = ""
        told += self._told
        self._told = []
        return told

    # --- states: each says whether another one may go on at once -------------------------------------------------------------

    def _first(self) -> bool:
        """The text begins; it may do so with a marker."""
        text = self._text.lstrip()
        if not text or (len(text) < len(self._form.marker) and self._form.marker.startswith(text)):
            return False
        if self._form.marker and text.startswith(self._form.marker):
            self._state = self._beside
            return True
        return self._open(self._form.begin, self._names)

    def _beside(self) -> bool:
        """Content, up to the next marker."""
        marker = self._form.marker
        found = self._text.find(marker) if marker else -1
        if found >= 0:
            shown = self._text[:found].rstrip()
            self._passed = self._text[len(shown) : found + len(marker)]
            self._content(shown)
            self._text = self._text[found + len(marker) :]
            self._state, self._searched = self._begun, 0
            return True
        sure = self._text[: len(self._text) - undecided(self._text, marker)].rstrip()
        self._content(sure)
        self._text = self._text[len(sure) :]
        return False

    def _begun(self) -> bool:
        """Behind a marker."""
        if not self._form.end:
            return self._open(self._form.begin, None)
        longest = HELD_CHARS_MAX + len(self._form.end) - 1  # shorter ones may still turn out to be closed in time
        closed = self._text.find(self._form.end, max(0, self._searched - len(self._form.end)))
        self._searched = len(self._text)
        body = self._text[:closed] if closed >= 0 else self._text
        found = opening(body)
        if isinstance(found, Opening) and found.at <= longest:
            return self._call(found.name, found.at)
        if found is Verdict.NO and body.lstrip()[:1] not in ("{", ""):
            return self._give_up()
        if closed < 0:
            return self._give_up() if len(body) > longest else False
        if closed > HELD_CHARS_MAX:
            return self._give_up()
        return self._whole(body, closed + len(self._form.end)) or self._give_up()

    def _next(self) -> bool:
        """Behind a call and what stands between two."""
        return self._open("", None)

    def _arguments(self) -> bool:
        at = self._value.end(self._text)
        piece = self._text if at is None else self._text[:at]
        if piece:
            self._told.append(Delta(call=self._number, arguments=piece))
        self._text = self._text[len(piece) :]
        self._state = self._arguments if at is None else self._closing
        return at is not None

    def _closing(self) -> bool:
        """Behind the arguments: the call's own `}`, which some models forget, and what follows a call."""
        rest = self._text.lstrip()
        after = rest.removeprefix("}").lstrip() if rest[:1] == "}" else rest
        for mark in (self._form.between, self._form.finish, self._form.end):
            if mark and after.startswith(mark):
                self._text = after[len(mark) :]
                more = mark == self._form.between
                self._passed, self._state = (mark, self._next) if more else ("", self._beside)
                return True
            if mark.startswith(after):
                return False
        if not after:
            return False
        self._text = rest.removeprefix("}") if rest[:1] == "}" else self._text
        self._state = self._beside
        return True

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def _open(self, begin: str, names: frozenset[str] | None) -> bool:
        """Begin a call where one begins; what is none is content."""
        body = self._text.lstrip()
        blanks = len(self._text) - len(body)
        if not body:
            return False
        found = opening(body, len(begin)) if body.startswith(begin) else Verdict.NO
        if found is Verdict.OPEN and len(body) <= HELD_CHARS_MAX:
            return False
        if isinstance(found, Verdict) or found.at > HELD_CHARS_MAX or (names is not None and found.name not in names):
            return self._give_up()
        return self._call(found.name, blanks + found.at)

    def _call(self, name: str, at: int) -> bool:
        self._number += 1
        self._told.append(Delta(call=self._number, name=name))
        self._text, self._passed, self._value = self._text[at:], "", Value()
        self._state = self._arguments
        return True

    def _whole(self, body: str, length: int) -> bool:
        """A call whose parts stand in another order, or whose arguments are no object; its text is `length` long."""
        if self._state != self._begun or not self._form.end:
            return False
        try:
            call = _WHOLE.decode(body.encode())
            arguments = call.text()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False
        if not call.name:
            return False
        self._number += 1
        self._told += [Delta(call=self._number, name=call.name), Delta(call=self._number, arguments=arguments)]
        self._text, self._passed = self._text[length:], ""
        self._state = self._beside
        return True

    def _give_up(self) -> bool:
        """It is no call."""
        self._content(self._passed)
        self._passed = ""
        self._state = self._beside
        return True

    def _content(self, text: str) -> None:
        if text:
            self._told.append(Delta(content=text))
