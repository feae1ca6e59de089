"""What is asked, and what must be answered: the simulated engine's text follows from the prompt; SGLang's is asked for once, undisturbed.
Pure."""

import random

import msgspec

from legato.request import StepRequest
from services.worker.engines import prose
from shared.contracts.ids import StepId
from shared.core.several import choice_seed

TOKENS = (30, 120)  # of one answer, drawn evenly
TOKENS_OF_WORKFLOWS = (10, 40)  # theirs follow one another
SIMULATED_MODEL = "sim-small"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One step to submit. `expected` are the tokens of its answer, `text` their text. `seed`: of the request, from which choices have
    theirs. `form`: JSON Schema of the answer, for a demanded call of a tool; then the prompt is a chat's only message."""

    model: str
    prompt: str
    max_tokens: int
    expected: list[int]
    text: str
    seed: int | None = None
    form: str = ""

    @property
    def request(self) -> StepRequest:
        """What the client is given."""
        asked: StepRequest = {"model": self.model, "max_tokens": self.max_tokens, "temperature": 0}
        if self.seed is not None:
            asked["seed"] = self.seed
        if self.form:
            return {**asked, "messages": [{"role": "user", "content": self.prompt}], "json_schema": self.form}
        return {**asked, "prompt": self.prompt}


def simulated(prompt: str, max_tokens: int, model: str = SIMULATED_MODEL, seed: int | None = None, choice: int = 0) -> Ask:
    """With the answer that the simulated engine must give, of a seed to the choice with that number, counted from 0."""
    begin = prose.offset_of(None if seed is None else choice_seed(seed, choice), list(prompt.encode()))
    tokens = prose.tokens_at(begin, 0, max_tokens)
    text = bytes(tokens).decode(errors="replace")
    return Ask(model=model, prompt=prompt, max_tokens=max_tokens, expected=tokens, text=text, seed=seed)


class Asks:
    """An endless supply, the same for the same seed. With `known`, only these are asked."""

    def __init__(self, seed: int, known: list[Ask] | None = None) -> None:
        self._draw = random.Random(seed)
        self._known = known or []
        self._name = f"chaos-{seed}-{'known-' if known else ''}"
        self._number = 0

    def next(self, tokens: tuple[int, int] = TOKENS) -> tuple[StepId, Ask]:
        """A new step's id, and what it asks; its answer is of so many tokens."""
        self._number += 1
        step = StepId(f"{self._name}{self._number}")
        if self._known:
            return step, self._draw.choice(self._known)
        return step, simulated(self._prompt(), self._draw.randint(*tokens))

    def choices(self, number: int) -> list[Ask]:
        """What each choice of one request must answer: greedy engines the same, the simulated one by its seed. None is a call of a tool."""
        self._number += 1
        if self._known:
            return [self._draw.choice([ask for ask in self._known if not ask.form])] * number
        prompt, tokens = self._prompt(), self._draw.randint(*TOKENS)
        return [simulated(prompt, tokens, seed=self._number, choice=choice) for choice in range(number)]

    def _prompt(self) -> str:
        return f"Movement {self._number}, played {self._number % 7} times, each time as if it were the first."
