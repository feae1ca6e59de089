"""From a submission to token ids: chat templates and tokenisers, kept in memory per model.

Short prompts are tokenised where they are; the hop to a thread and back would cost more. Long ones go to a few threads, so that others
do not wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import jinja2
import msgspec
from tokenizers import Tokenizer

from services.admission.reading import beyond_vocabulary
from services.admission.refusal import invalid, plain
from services.admission.templates import ChatTemplate, compile_template
from shared.contracts.fleet import ModelCard
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Submission
from shared.core.blocks import block_hashes

INLINE_BYTES = 2_048  # of a submission's body. 2 KB tokenise in about 1 ms, a hop to a thread takes 0.1 ms
TEMPLATES_MAX = 64

Fetch = Callable[[str], Awaitable[bytes | None]]
Kept = TypeVar("Kept")


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as the engine takes it: token ids, and the hash of each full block."""

    tokens: list[int]
    blocks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokeniser:
    """What turns a submission to one model into tokens. May be used in any thread."""

    card: ModelCard
    tokenizer: Tokenizer
    template: ChatTemplate

    def encode(self, submission: Submission) -> Encoded | Problem:
        """The prompt's tokens, each of which the engine has; or why there are none."""
        tokens = self._tokens(submission)
        if isinstance(tokens, Problem):
            return tokens
        param = "prompt" if submission.messages is None else "messages"
        if not tokens:
            return invalid("the prompt has no tokens", param)
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.card.vocab_size:
                return beyond_vocabulary(self.card, str(token), param)
        return Encoded(tokens=tokens, blocks=block_hashes(tokens, self.card.block_tokens))

    def _tokens(self, submission: Submission) -> list[int] | Problem:
        if isinstance(submission.prompt, list):
            return submission.prompt
        if submission.prompt is not None:
            return self._ids(submission.prompt, special=True)
        text = self.template.render(submission, self.card)
        return text if isinstance(text, Problem) else self._ids(text, special=False)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return ids


class Tokenisers:
    """All tokenizers and templates in use. At most `kept` tokenizers, each fetched once by the name that its model's card gives."""

    def __init__(self, fetch: Fetch, kept: int, threads: int) -> None:
        self._fetch = fetch
        self._kept = kept
        self._tokenizers: dict[str, Tokenizer] = {}
        self._templates: dict[str, ChatTemplate] = {}
        self._loading = asyncio.Lock()
        self._pool = ThreadPoolExecutor(threads, "tokenising")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def at_hand(self, card: ModelCard) -> Tokeniser | None:
        """The model's tokeniser, if all of it is in memory."""
        tokenizer, template = self._tokenizers.get(card.tokenizer), self._templates.get(card.chat_template)
        return None if tokenizer is None or template is None else Tokeniser(card=card, tokenizer=tokenizer, template=template)

    async def encode(self, submission: Submission, card: ModelCard, size: int) -> Encoded | Problem:
        """The prompt's tokens, or why there are none. `size`: the submission's bytes. Raises what `fetch` raises."""
        tokenizer = self._tokenizers.get(card.tokenizer) or await self._loaded(card)
        template = self._templates.get(card.chat_template) or self._compiled(card)
        if isinstance(tokenizer, Problem):
            return tokenizer
        if isinstance(template, Problem):
            return template
        tokeniser = Tokeniser(card=card, tokenizer=tokenizer, template=template)
        if size <= INLINE_BYTES:
            return tokeniser.encode(submission)
        return await asyncio.get_running_loop().run_in_executor(self._pool, tokeniser.encode, submission)

    async def _loaded(self, card: ModelCard) -> Tokenizer | Problem:
        async with self._loading:
            if card.tokenizer in self._tokenizers:
                return self._tokenizers[card.tokenizer]
            content = await self._fetch(card.tokenizer)
            if content is None:
                return _broken(card, f"{card.tokenizer} is not in the object store")
            try:
                tokenizer = await asyncio.get_running_loop().run_in_executor(self._pool, read_tokenizer, content)
            except Exception as error:  # the library raises nothing more special
                return _broken(card, str(error))
            return _keep(self._tokenizers, card.tokenizer, tokenizer, self._kept)

    def _compiled(self, card: ModelCard) -> ChatTemplate | Problem:
        try:
            return _keep(self._templates, card.chat_template, compile_template(card.chat_template), TEMPLATES_MAX)
        except jinja2.TemplateError as error:
            return _broken(card, f"chat template, line {getattr(error, 'lineno', '?')}: {error}")


def read_tokenizer(content: bytes) -> Tokenizer:
    """A tokenizer.json, made to give every token of a text: some files carry the truncation that their model was trained with."""
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _broken(card: ModelCard, why: str) -> Problem:
    return Problem(reason=Reason.INTERNAL, message=plain(f"the tokenizer of {card.name} cannot be used: {why}"))


def _keep(kept: dict[str, Kept], key: str, value: Kept, most: int) -> Kept:
    """Put it in; what has been there longest goes."""
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
    return value
