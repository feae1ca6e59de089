"""What the simulated engine says: a fixed text, walked through from an offset that the seed (or the prompt) chooses.

The token at an output position depends on that offset and the position only, so a resumed output goes on exactly where it stopped.
"""

import zlib
from array import array
from collections.abc import Collection, Sequence

# Tokens are bytes (byte_tokenizer.py). Some characters take two or three of them, so that cuts within a character happen.
_TEXT = """\
A score does not sound by itself — somebody has to play it. The violin begins, the cello answers, and between them lies a café table \
with two cups, one of them cold. "Again from bar nine," she says, “and this time without the breath in the middle.” They play; the line \
holds. Whoever turns the page now does it so quietly that nobody in the room looks up. In Japanese the word for sound is 音, and the word \
for music is 音楽: sound, and the joy of it. Für Elise, Clair de lune, a naïve little waltz — each is a promise that the next note will \
come. When one player has to leave, another reads the same bar over her shoulder, breathes in with her, and lifts the bow on the same \
beat. The audience hears one phrase. That is all the art there is in it, and it is enough. """

TOKENS = _TEXT.encode()
LENGTH = len(TOKENS)
_TWICE = TOKENS * 2  # so that a stretch across the end is one slice

_SENTENCES = [0] + [index + 2 for index in range(LENGTH - 2) if TOKENS[index : index + 2] in (b". ", b"; ", b": ")]
_PROMPT_TAIL = 64  # tokens of the prompt that choose the offset when there is no seed


def offset_of(seed: int | None, prompt: Sequence[int]) -> int:
    """Where in the text an output starts: at some sentence."""
    source = array("I", prompt[-_PROMPT_TAIL:]).tobytes() if seed is None else seed.to_bytes(8, "little")
    return _SENTENCES[zlib.crc32(source) % len(_SENTENCES)]


def token_at(offset: int, position: int) -> int:
    """The output token at `position`, counted from 0."""
    return TOKENS[(offset + position) % LENGTH]


def tokens_at(offset: int, start: int, stop: int) -> list[int]:
    """The output tokens at the positions from `start` up to, not including, `stop`."""
    first = (offset + start) % LENGTH
    count = stop - start
    if count > LENGTH:
        return [token_at(offset, position) for position in range(start, stop)]
    return list(_TWICE[first : first + count])


def first_of(wanted: Collection[int], offset: int, start: int, stop: int) -> int | None:
    """The first position from `start` and below `stop` whose token is among `wanted`."""
    if not wanted:
        return None
    return next((position for position in range(start, min(stop, start + LENGTH)) if token_at(offset, position) in wanted), None)
