"""What a model thought before it answers: `<think>…</think>`, then the answer. Pure.

    deepseek_r1   the text begins in thought; `<think>` may stand there or not, since the chat template has said it already
    qwen3         the text is thought only where it begins with `<think>`

Sources: the chat templates of deepseek-ai/DeepSeek-R1 and Qwen/Qwen3-8B (and -Thinking-2507, which is of the first kind). The markers are
not told, nor are blanks beside them. Without `</think>`, all that follows is thought: the output was cut.
"""

from shared.core.parsing.deltas import Delta, undecided

BEGIN, END = "<think>", "</think>"


class Reasoning:
    """`begun`: the text begins in thought, also without a marker."""

    def __init__(self, *, begun: bool) -> None:
        self._begun = begun
        self._text = ""  # not told yet
        self._state = self._first
        self._told: list[Delta] = []

    def push(self, text: str) -> list[Delta]:
        self._text += text
        while self._state():
            pass
        told, self._told = self._told, []
        return told

    def end(self) -> list[Delta]:
        rest, self._text = self._text, ""
        if not rest or self._state == self._behind:
            return []
        thought = self._state == self._thought or (self._state == self._first and self._begun)
        return [Delta(reasoning=rest) if thought else Delta(content=rest)]

    def _first(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(BEGIN):
            self._text, self._state = text.removeprefix(BEGIN), self._blank
            return True
        if BEGIN.startswith(text):
            return False
        self._state = self._blank if self._begun else self._answer
        return True

    def _blank(self) -> bool:
        """Where thought begins."""
        self._text = self._text.lstrip()
        self._state = self._thought if self._text else self._blank
        return bool(self._text)

    def _thought(self) -> bool:
        found = self._text.find(END)
        sure = self._text[: found if found >= 0 else len(self._text) - undecided(self._text, END)].rstrip()
        if sure:
            self._told.append(Delta(reasoning=sure))
        if found < 0:
            self._text = self._text[len(sure) :]
            return False
        self._text, self._state = self._text[found + len(END) :], self._behind
        return True

    def _behind(self) -> bool:
        """Blanks before the answer."""
        self._text = self._text.lstrip()
        self._state = self._answer if self._text else self._behind
        return bool(self._text)

    def _answer(self) -> bool:
        if self._text:
            self._told.append(Delta(content=self._text))
        self._text = ""
        return False
