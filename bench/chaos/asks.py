"""What is asked, and what must be answered: the simulated engine's text follows from the prompt; SGLang's is asked for once, undisturbed.
Pure."""

import random

import msgspec

from services.worker.engines import prose
from shared.contracts.ids import StepId

TOKENS = (30, 120)  # of one answer, drawn evenly
TOKENS_OF_WORKFLOWS = (10, 40)  # theirs follow one another
SIMULATED_MODEL = "sim-small"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One step to submit. `expected` are the tokens of its answer, `text` their text."""

    model: str
    prompt: str
    max_tokens: int
    expected: list[int]
    text: str


def simulated(prompt: str, max_tokens: int, model: str = SIMULATED_MODEL) -> Ask:
    """With the answer that the simulated engine must give to a prompt without a seed."""
    tokens = prose.tokens_at(prose.offset_of(None, list(prompt.encode())), 0, max_tokens)
    return Ask(model=model, prompt=prompt, max_tokens=max_tokens, expected=tokens, text=bytes(tokens).decode(errors="replace"))


class Asks:
    """An endless supply, the same for the same seed. With `known`, only these are asked."""

    def __init__(self, seed: int, known: list[Ask] | None = None) -> None:
        self._draw = random.Random(seed)
        self._known = known or []
        self._number = 0
        self._seed = seed

    def next(self, tokens: tuple[int, int] = TOKENS) -> tuple[StepId, Ask]:
        """A new step's id, and what it asks; its answer is of so many tokens."""
        self._number += 1
        step = StepId(f"chaos-{self._seed}-{self._number}")
        if self._known:
            return step, self._draw.choice(self._known)
        prompt = f"Movement {self._number}, played {self._number % 7} times, each time as if it were the first."
        return step, simulated(prompt, self._draw.randint(*tokens))
