"""Tokens to text, a few at a time. What is shown after n tokens depends on these n tokens only, never on how they were cut into chunks.

Rule: text is settled up to the last token after which it does not end with U+FFFD, that is, with a character still incomplete. What is
settled never changes; the rest is held back until more tokens complete it, or `flush` shows it as a full decode would. A stretch that
stays incomplete for `HELD_TOKENS_MAX` tokens is no text but garbage, and is settled as it is.

Because of the rule, a resumed output knows from its tokens alone how much text its reader has. The library's DecodeStream does not give
that: a list of tokens that ends within a character holds all of the list back, and one that is primed with ids ending within a character
shows text again. Both were seen with tokenizers 0.23.3; tests/property/test_output_properties.py would notice.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders

INCOMPLETE = "\ufffd"
HELD_TOKENS_MAX = 48  # a multiple of 2, 3 and 4: a run of real U+FFFD in single-byte tokens is not cut within one
_PIECE_TOKENS = 32  # decoded in one go: far enough below HELD_TOKENS_MAX that nothing can become garbage within a piece
_CONTEXT_TOKENS = 8  # enough for decoders that look at the token before (leading spaces)


class Detokenizer:
    """Special tokens are skipped. `before` are the tokens before the first one: the end of the prompt.

    A shallow copy goes on independently: no list is ever changed in place.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._by_byte = isinstance(tokenizer.decoder, decoders.ByteLevel)  # settled text then never depends on tokens before
        self._context: list[int] = []  # settled tokens, decoded together with the held ones
        self._context_text = ""
        self._held: list[int] = []
        if not self._by_byte:
            self._remember(list(before[-_CONTEXT_TOKENS:]))

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` settle."""
        if len(tokens) == 1:
            return self._push_one(tokens[0])
        return "".join([self._push_piece(tokens[start : start + _PIECE_TOKENS]) for start in range(0, len(tokens), _PIECE_TOKENS)])

    def flush(self) -> str:
        """The text held back, however incomplete. Nothing may be pushed afterwards."""
        text = self._decode(self._held)
        self._held = []
        return text

    def text_of(self, token: int) -> str:
        """One token by itself, special or not."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def _push_piece(self, piece: Sequence[int]) -> str:
        if len(piece) < HELD_TOKENS_MAX - len(self._held):
            together = [*self._held, *piece]
            text = self._decode(together)
            if INCOMPLETE not in text:  # then no token of the piece would have been settled differently one by one
                self._settle(together, text)
                return text
        return "".join([self._push_one(token) for token in piece])

    def _push_one(self, token: int) -> str:
        held = [*self._held, token]
        text = self._decode(held)
        if text.endswith(INCOMPLETE) and len(held) < HELD_TOKENS_MAX:
            self._held = held
            return ""
        self._settle(held, text)
        return text

    def _decode(self, tokens: list[int]) -> str:
        if not self._context:
            return self._tokenizer.decode(tokens, skip_special_tokens=True)
        whole = self._tokenizer.decode(self._context + tokens, skip_special_tokens=True)
        if whole.startswith(self._context_text):
            return whole[len(self._context_text) :]
        # Invalid bytes after valid ones made the decoder take the valid ones back; they have been shown, so the new ones stand alone.
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def _settle(self, tokens: list[int], text: str) -> None:
        self._held = []
        if not self._by_byte and (text or not self._context_text):
            self._remember(tokens)

    def _remember(self, tokens: list[int]) -> None:
        """Keep the end of `tokens` as context, if it can be decoded by itself; else the older context still serves. Before there is any
        text, what gave none counts, too: a first blank is left out, a second one is not."""
        for context in (tokens[-_CONTEXT_TOKENS:], tokens):
            text = self._tokenizer.decode(context, skip_special_tokens=True)
            if text and INCOMPLETE not in text:
                self._context, self._context_text = context, text
                return
        if not self._context_text:
            context = [*self._context, *tokens][-_CONTEXT_TOKENS:]
            text = self._tokenizer.decode(context, skip_special_tokens=True)
            if INCOMPLETE not in text:
                self._context, self._context_text = context, text
