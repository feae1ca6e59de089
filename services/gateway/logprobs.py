"""Log-probabilities in OpenAI's two shapes. Pure."""

from collections.abc import Sequence
from typing import Any

from shared.contracts.output import TokenLogprob

LOGPROB_MIN = -9999.0  # what OpenAI gives for a token that cannot occur; JSON has no infinity
REPLACEMENT = "\ufffd"  # stands in texts for bytes that are no character by themselves


def of_chat(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """As chats have them."""
    return [
        _chat_token(token.text, token.logprob) | {"top_logprobs": [_chat_token(each.text, each.logprob) for each in token.top]}
        for token in tokens
    ]


def of_completion(tokens: Sequence[TokenLogprob], offset: int, top: int) -> dict[str, Any]:
    """As completions have them. `offset`: characters of the tokens before; `top`: how many alternatives were asked for."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_logprob(token.logprob) for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens] if top else None,
        "text_offset": offsets,
    }


def _chat_token(text: str, logprob: float) -> dict[str, Any]:
    known = REPLACEMENT not in text  # else the token's bytes are lost, and may be no character at all
    return {"token": text, "logprob": _logprob(logprob), "bytes": list(text.encode()) if known else None}


def _by_text(token: TokenLogprob) -> dict[str, float]:
    """Alternatives by their text; of two with the same text, the likelier one, which comes first."""
    found: dict[str, float] = {}
    for each in token.top:
        found.setdefault(each.text, _logprob(each.logprob))
    return found


def _logprob(value: float) -> float:
    return max(value, LOGPROB_MIN)
