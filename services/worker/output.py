"""The output processor: an engine's tokens in, what the reader may see out. Shared by all engines. Pure: no clock, no I/O.

It decides when an output ends, whatever the engine says:
- an end-of-sequence token (unless `ignore_eos`) or one of `stop_token_ids`, after at least `min_tokens` others: STOP; its text is hidden,
  the token counts;
- a stop string: STOP; its text is cut off, and tokens are kept up to and including the one that completed it, so that the tokens alone say
  that and where the output ended. Stop strings count from the first token, whatever `min_tokens` (as in SGLang);
- `max_tokens` tokens: LENGTH. Where several hold at once, STOP goes before LENGTH.
Tokens after the end are dropped. An end that only the engine knows (`finish` of push) is taken over when the tokens do not show one before.

Text lags the tokens while a character is incomplete or a stop string may be beginning. How far it lags depends on the tokens only, so an
attempt that resumes after n tokens knows which text its reader has: it says the rest, without gap or repeat, and stop strings and
characters may straddle the seam. At STOP and LENGTH what was held back is shown. At CANCELLED and ERROR it is not: another attempt
may go on from these tokens.
"""

from collections.abc import Sequence
from copy import copy

import msgspec
from tokenizers import Tokenizer

from services.worker.detokenizer import Detokenizer
from services.worker.engines.base import EngineRequest
from services.worker.stop_strings import StopStrings
from shared.contracts.outcomes import FinishReason
from shared.contracts.output import TokenLogprob, TopLogprob


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What one push added to the output. `tokens` can be fewer than were pushed (never more), `logprobs` belong to them."""

    tokens: list[int] = []
    text: str = ""
    logprobs: list[TokenLogprob] = []
    finish: FinishReason | None = None


class OutputProcessor:
    """The whole output of one step, seen by one attempt. `resumed` of the request is taken as delivered.

    Look at `finish` before the engine is asked: the resumed tokens may already be complete.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int], request: EngineRequest) -> None:
        sampling = request.sampling
        eos = () if sampling.ignore_eos else eos_token_ids
        self._stop_tokens = frozenset(eos) | frozenset(sampling.stop_token_ids)
        self._min_tokens = sampling.min_tokens
        self._max_tokens = request.max_tokens
        self._detokenizer = Detokenizer(tokenizer, request.tokens[-8:])
        self._stops = StopStrings(sampling.stop) if sampling.stop else None
        self._texts: list[str] = []
        self.tokens: list[int] = []  # of the whole output
        self.finish: FinishReason | None = None
        self.push(request.resumed)

    @property
    def offset(self) -> int:
        """Output tokens so far: where the next piece starts."""
        return len(self.tokens)

    @property
    def full_text(self) -> str:
        """All text shown so far, that of the resumed part included."""
        return "".join(self._texts)

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = (), finish: FinishReason | None = None) -> Piece:
        """Take an engine's chunk. `finish` is the engine's own; once the output has ended, pushes add nothing."""
        if self.finish is not None:
            return Piece(finish=self.finish)
        kept, ended, hidden = self._cut(tokens)
        kept, text = self._show(kept, hidden)
        if self._stops is not None and self._stops.matched:
            ended = FinishReason.STOP
        self.finish = ended or finish
        if self.finish is not None and self.finish in (FinishReason.STOP, FinishReason.LENGTH):
            text += self._flush()
        named = [self._named(each) for each in logprobs[: len(kept)]] if logprobs else []
        self.tokens += kept
        if text:
            self._texts.append(text)
        return Piece(tokens=kept, text=text, logprobs=named, finish=self.finish)

    def _cut(self, tokens: Sequence[int]) -> tuple[list[int], FinishReason | None, bool]:
        """The tokens up to the end that tokens alone decide, that end, and whether the last one is a hidden stop token."""
        room = self._max_tokens - len(self.tokens)
        kept = list(tokens[:room])
        if not self._stop_tokens.isdisjoint(kept):
            first = max(0, self._min_tokens - len(self.tokens))
            for index in range(first, len(kept)):
                if kept[index] in self._stop_tokens:
                    return kept[: index + 1], FinishReason.STOP, True
        return kept, FinishReason.LENGTH if len(kept) == room else None, False

    def _show(self, kept: list[int], hidden: bool) -> tuple[list[int], str]:
        """The text of `kept` (less the hidden last one), and the tokens up to a stop string that it completed."""
        visible = kept[:-1] if hidden else kept
        if self._stops is None:
            return kept, self._detokenizer.push(visible)
        if len(visible) > 1:
            before = copy(self._detokenizer), copy(self._stops)
            text = self._stops.push(self._detokenizer.push(visible))
            if not self._stops.matched:
                return kept, text
            self._detokenizer, self._stops = before  # again, token by token, to see which one completed it
        text = ""
        for index, token in enumerate(visible):
            text += self._stops.push(self._detokenizer.push((token,)))
            if self._stops.matched:
                return kept[: index + 1], text
        return kept, text

    def _flush(self) -> str:
        if self._stops is None:
            return self._detokenizer.flush()
        text = self._stops.push(self._detokenizer.flush())
        if self._stops.matched:
            self.finish = FinishReason.STOP
        return text + self._stops.flush()

    def _named(self, logprob: TokenLogprob) -> TokenLogprob:
        """The same with the texts of its tokens."""
        top = [TopLogprob(token=each.token, text=self._text_of(each.token), logprob=each.logprob) for each in logprob.top]
        return TokenLogprob(token=logprob.token, text=self._text_of(logprob.token), logprob=logprob.logprob, top=top)

    def _text_of(self, token: int) -> str:
        return self._detokenizer.text_of(token)
