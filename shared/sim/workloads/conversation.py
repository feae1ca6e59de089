"""A context that grows: what was told to the model and what it answered, call by call."""

from collections.abc import Iterable

from shared.sim.programs import Call, Segment
from shared.sim.workloads.source import Source


class Conversation:
    """Calls one after the other, each with the whole of what came before as its prompt. `name`: the first part of its calls' keys."""

    def __init__(self, source: Source, opening: Iterable[Segment], name: str = "call") -> None:
        self.calls: list[Call] = []
        self.tokens = 0  # of the next prompt
        self._source = source
        self._name = name
        self._prompt: list[Segment] = []
        self.begin_again(opening)

    def begin_again(self, opening: Iterable[Segment]) -> None:
        """Forgets what was said; the next prompt begins like that."""
        self._prompt = list(opening)
        self.tokens = sum(segment.tokens for segment in self._prompt)

    def say(self, tokens: int) -> None:
        """So many new tokens: a question, a tool's result."""
        self.quote([self._source.fresh(tokens)])

    def quote(self, texts: Iterable[Segment]) -> None:
        """Texts that there are already."""
        for text in texts:
            self._prompt.append(text)
            self.tokens += text.tokens

    def keep(self, tokens: int) -> None:
        """Forgets what is behind the first `tokens`."""
        while self._prompt and self.tokens > tokens:
            content, length = self._prompt.pop()
            self.tokens -= length
            if self.tokens < tokens:
                self.quote([Segment(content, tokens - self.tokens)])

    def ask(self, output_tokens: int, wait_s: float = 0.0, after: Iterable[str] | None = None) -> Call:
        """The next call, `wait_s` after the one before or after those that are named. Its answer belongs to what comes next."""
        before = (self.calls[-1].key,) if self.calls else ()
        call = Call(
            key=f"{self._name}-{len(self.calls) + 1}",
            prompt=tuple(self._prompt),
            output=self._source.fresh(output_tokens),
            after=before if after is None else tuple(after),
            wait_s=wait_s,
        )
        self.calls.append(call)
        self.quote([call.output])
        return call
