"""Outputs in, OpenAI's replies out: server-sent events, or one JSON object at the end. Pure.

A reply is folded from a step's outputs in order. What is the same in all events of a stream is encoded once; an event is then three
pieces of bytes and the text. Outputs without text (a character or a stop string is incomplete) make no event.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from services.gateway.dialect import Asked
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Usage
from shared.contracts.output import End, Output, TokenLogprob

DONE = b"data: [DONE]\n\n"
LOGPROB_MIN = -9999.0  # what OpenAI gives for a token that cannot occur; JSON has no infinity
REPLACEMENT = "\ufffd"  # stands in texts for bytes that are no character by themselves

_encode = msgspec.json.encode


class Reply(Protocol):
    """What a request gets."""

    def events(self, outputs: Sequence[Output]) -> bytes:
        """The outputs as server-sent events; after the one with `end`, usage if asked for, and [DONE]."""

    def fold(self, outputs: Sequence[Output]) -> None:
        """Take outputs for `whole`."""

    def whole(self, end: End) -> bytes:
        """All that was folded, as one object."""


def reply_to(asked: Asked, step: StepId, created_s: int) -> Reply:
    """An empty reply. `created_s`: Unix time in seconds."""
    return ChatReply(asked, step, created_s) if asked.chat else CompletionReply(asked, step, created_s)


class ChatReply:
    """A reply of /v1/chat/completions."""

    def __init__(self, asked: Asked, step: StepId, created_s: int) -> None:
        self._names = {"id": f"chatcmpl-{step}", "object": "chat.completion.chunk", "created": created_s, "model": asked.submission.model}
        self._frame = _Frame(self._names, include_usage=asked.include_usage)
        self._logprobs = asked.submission.sampling.logprobs is not None
        self._started = False
        self._texts: list[str] = []
        self._tokens: list[dict[str, Any]] = []

    def events(self, outputs: Sequence[Output]) -> bytes:
        return self._frame.events(outputs, self._choice)

    def _choice(self, output: Output) -> bytes:
        if not output.text and not output.end and not (self._logprobs and output.logprobs):
            return b""
        delta = b'"content":' + _encode(output.text) if output.text or not output.end or not self._started else b""
        if not self._started:
            delta = b'"role":"assistant",' + delta
            self._started = True
        logprobs = _encode({"content": _chat_tokens(output.logprobs), "refusal": None}) if self._logprobs else b"null"
        return b'"delta":{' + delta + b'},"logprobs":' + logprobs

    def fold(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._texts.append(output.text)
            self._tokens += _chat_tokens(output.logprobs)

    def whole(self, end: End) -> bytes:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(self._texts), "refusal": None},
            "logprobs": {"content": self._tokens, "refusal": None} if self._logprobs else None,
            "finish_reason": end.finish_reason,
        }
        return _encode(self._names | {"object": "chat.completion", "choices": [choice], "usage": _usage(end.usage)})


class CompletionReply:
    """A reply of /v1/completions."""

    def __init__(self, asked: Asked, step: StepId, created_s: int) -> None:
        self._names = {"id": f"cmpl-{step}", "object": "text_completion", "created": created_s, "model": asked.submission.model}
        self._frame = _Frame(self._names, include_usage=asked.include_usage)
        self._top = asked.submission.sampling.logprobs
        self._characters = 0  # of the tokens so far
        self._texts: list[str] = []
        self._tokens: list[TokenLogprob] = []

    def events(self, outputs: Sequence[Output]) -> bytes:
        return self._frame.events(outputs, self._choice)

    def _choice(self, output: Output) -> bytes:
        if not output.text and not output.end and not (self._top is not None and output.logprobs):
            return b""
        return b'"text":' + _encode(output.text) + b',"logprobs":' + _encode(self._logprobs(output.logprobs))

    def fold(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._texts.append(output.text)
            self._tokens += output.logprobs

    def whole(self, end: End) -> bytes:
        choice = {"index": 0, "text": "".join(self._texts), "logprobs": self._logprobs(self._tokens), "finish_reason": end.finish_reason}
        return _encode(self._names | {"choices": [choice], "usage": _usage(end.usage)})

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._characters)
            self._characters += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [_logprob(token.logprob) for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens] if self._top else None,
            "text_offset": offsets,
        }


class _Frame:
    """The constant parts of a stream's events."""

    def __init__(self, names: dict[str, Any], *, include_usage: bool) -> None:
        self._head = b"data: " + _encode(names)[:-1]
        self._open = self._head + b',"choices":[{"index":0,'
        self._usage = include_usage
        usage = b',"usage":null' if include_usage else b""
        self._close = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._finish = b"}]" + usage + b"}\n\n"

    def events(self, outputs: Sequence[Output], choice_of: "_ChoiceOf") -> bytes:
        pieces: list[bytes] = []
        for output in outputs:
            choice = choice_of(output)
            if output.end is not None:
                pieces += (self._open, choice, b',"finish_reason":', _encode(output.end.finish_reason), self._finish)
                if self._usage:
                    pieces += (self._head, b',"choices":[],"usage":', _encode(_usage(output.end.usage)), b"}\n\n")
                pieces.append(DONE)
            elif choice:
                pieces += (self._open, choice, self._close)
        return b"".join(pieces)


class _ChoiceOf(Protocol):
    def __call__(self, output: Output, /) -> bytes:
        """The fields of an event's choice before its finish reason; empty: no event."""


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _chat_tokens(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        _chat_token(token.text, token.logprob) | {"top_logprobs": [_chat_token(each.text, each.logprob) for each in token.top]}
        for token in tokens
    ]


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
