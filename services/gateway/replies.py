"""Outputs in, OpenAI's replies out: server-sent events, or one JSON object at the end. Pure.

A reply is folded from the outputs of its choices, each in order. What is the same in all events of a choice is encoded once; an event is
then three pieces of bytes and the text. Outputs without text (a character or a stop string is incomplete) make no event. Where the model
calls tools or thinks, a choice's text goes through its reader (shared/core/parsing/reader.py), and one output may make several events.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from services.gateway.dialect import Asked
from services.gateway.logprobs import of_chat, of_completion
from services.gateway.tools import Reading
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason, Usage
from shared.contracts.output import End, Output, TokenLogprob
from shared.core.parsing.deltas import Delta, Parsed
from shared.core.parsing.reader import Reader

DONE = b"data: [DONE]\n\n"
CALL_ID_DIGITS = 9  # of a call's id: as many as Mistral's chat templates demand
TOOL_CALLS = "tool_calls"  # OpenAI's finish reason where there are calls

_encode = msgspec.json.encode


class Choice(Protocol):
    """One choice of a reply."""

    def events(self, output: Output) -> list[bytes]:
        """The fields of each event's choice before its finish reason. With `end` at least one."""

    def fold(self, output: Output) -> None:
        """Take an output for `whole`."""

    def whole(self) -> dict[str, Any]:
        """All that was folded, but index and finish reason."""

    def finish(self, end: End) -> str:
        """Why it ended, in OpenAI's words."""


class Reply:
    """What a request gets."""

    def __init__(self, names: dict[str, Any], kind: str, choices: Sequence[Choice], *, include_usage: bool) -> None:
        """`kind`: the object of the whole reply; `names`: what every event begins with."""
        self._names = names
        self._kind = kind
        self._choices = choices
        self._ends: dict[int, End] = {}
        self._head = b"data: " + _encode(names)[:-1]
        self._opens = [self._head + b',"choices":[{"index":%d,' % index for index in range(len(choices))]
        self._include_usage = include_usage
        usage = b',"usage":null' if include_usage else b""
        self._close = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._finish = b"}]" + usage + b"}\n\n"

    def events(self, outputs: Sequence[Output], index: int = 0) -> bytes:
        """Outputs of a choice as server-sent events; after the last choice's `end`, usage if asked for, and [DONE]."""
        pieces: list[bytes] = []
        choice = self._choices[index]
        for output in outputs:
            events = choice.events(output)
            last = events.pop() if output.end is not None else b""
            for event in events:
                pieces += (self._opens[index], event, self._close)
            if output.end is not None:
                pieces += (self._opens[index], last, b',"finish_reason":', _encode(choice.finish(output.end)), self._finish)
                self._ends[index] = output.end
                pieces += self._done()
        return b"".join(pieces)

    def fold(self, outputs: Sequence[Output], index: int = 0) -> None:
        """Take outputs of a choice for `whole`."""
        for output in outputs:
            self._choices[index].fold(output)
            if output.end is not None:
                self._ends[index] = output.end

    def whole(self) -> bytes:
        """All that was folded, as one object, once every choice has ended."""
        choices = [
            {"index": index, **choice.whole(), "finish_reason": choice.finish(self._ends[index])}
            for index, choice in enumerate(self._choices)
        ]
        return _encode(self._names | {"object": self._kind, "choices": choices, "usage": _usage(self._usages())})

    def _done(self) -> tuple[bytes, ...]:
        if len(self._ends) < len(self._choices):
            return ()
        usage = (self._head, b',"choices":[],"usage":', _encode(_usage(self._usages())), b"}\n\n") if self._include_usage else ()
        return (*usage, DONE)

    def _usages(self) -> list[Usage]:
        return [self._ends[index].usage for index in sorted(self._ends)]


def reply_to(asked: Asked, step: StepId, created_s: int, reading: Reading | None = None) -> Reply:
    """An empty reply. `step`: of its first choice; `created_s`: Unix time in seconds; `reading`: of a chat's text, None: as it is."""
    names = {"object": "chat.completion.chunk" if asked.chat else "text_completion", "created": created_s, "model": asked.submission.model}
    logprobs = asked.submission.sampling.logprobs
    if not asked.chat:
        completions = [CompletionChoice(logprobs) for _ in range(asked.n)]
        return Reply({"id": f"cmpl-{step}"} | names, "text_completion", completions, include_usage=asked.include_usage)
    read = reading or Reading()
    chats = [ChatChoice(read.reader(), _call_ids(step, index), logprobs=logprobs is not None) for index in range(asked.n)]
    return Reply({"id": f"chatcmpl-{step}"} | names, "chat.completion", chats, include_usage=asked.include_usage)


class ChatChoice:
    """Of /v1/chat/completions. `call_id`: of the call of this number."""

    def __init__(self, reader: Reader | None, call_id: Callable[[int], str], *, logprobs: bool) -> None:
        self._reader = reader
        self._call_id = call_id
        self._logprobs = logprobs
        self._started = False
        self._calls = 0
        self._texts: list[str] = []
        self._parsed = Parsed()
        self._tokens: list[dict[str, Any]] = []

    def events(self, output: Output) -> list[bytes]:
        deltas = self._deltas(output)
        if not deltas and not output.end and not (self._logprobs and output.logprobs):
            return []
        if not deltas:
            deltas = [b'"content":""' if self._reader is None and not (output.end and self._started) else b""]
        if not self._started:
            deltas[0] = b'"role":"assistant"' + (b"," if deltas[0] else b"") + deltas[0]
            self._started = True
        logprobs = _encode({"content": of_chat(output.logprobs), "refusal": None}) if self._logprobs else b"null"
        without = b'{"content":[],"refusal":null}' if self._logprobs else b"null"
        return [b'"delta":{' + delta + b'},"logprobs":' + (without if number else logprobs) for number, delta in enumerate(deltas)]

    def _deltas(self, output: Output) -> list[bytes]:
        if self._reader is None:
            return [b'"content":' + _encode(output.text)] if output.text else []
        return [self._delta(each) for each in self._read(self._reader, output)]

    def _read(self, reader: Reader, output: Output) -> list[Delta]:
        deltas = reader.push(output.text) + (reader.end() if output.end is not None else [])
        self._calls += sum(1 for delta in deltas if delta.name)
        return deltas

    def _delta(self, delta: Delta) -> bytes:
        if delta.call is None:
            return b'"reasoning_content":' + _encode(delta.reasoning) if delta.reasoning else b'"content":' + _encode(delta.content)
        if not delta.name:
            return b'"tool_calls":' + _encode([{"index": delta.call, "function": {"arguments": delta.arguments}}])
        function = {"name": delta.name, "arguments": ""}
        return b'"tool_calls":' + _encode(
            [{"index": delta.call, "id": self._call_id(delta.call), "type": "function", "function": function}]
        )

    def fold(self, output: Output) -> None:
        self._tokens += of_chat(output.logprobs)
        if self._reader is None:
            self._texts.append(output.text)
        else:
            self._parsed.add(self._read(self._reader, output))

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        if self._reader is not None:
            parsed = self._parsed
            message["content"] = parsed.content if parsed.content or not (parsed.calls or parsed.reasoning) else None
            if parsed.reasoning:
                message["reasoning_content"] = parsed.reasoning
            if parsed.calls:
                message["tool_calls"] = [
                    {"id": self._call_id(number), "type": "function", "function": msgspec.to_builtins(call)}
                    for number, call in enumerate(parsed.calls)
                ]
        return {"message": message, "logprobs": {"content": self._tokens, "refusal": None} if self._logprobs else None}

    def finish(self, end: End) -> str:
        return TOOL_CALLS if self._calls and end.finish_reason is FinishReason.STOP else end.finish_reason


class CompletionChoice:
    """Of /v1/completions. `top`: alternatives asked for, None: no log-probabilities."""

    def __init__(self, top: int | None) -> None:
        self._top = top
        self._characters = 0  # of the tokens so far
        self._texts: list[str] = []
        self._tokens: list[TokenLogprob] = []

    def events(self, output: Output) -> list[bytes]:
        if not output.text and not output.end and not (self._top is not None and output.logprobs):
            return []
        return [b'"text":' + _encode(output.text) + b',"logprobs":' + _encode(self._logprobs(output.logprobs))]

    def fold(self, output: Output) -> None:
        self._texts.append(output.text)
        self._tokens += output.logprobs

    def whole(self) -> dict[str, Any]:
        return {"text": "".join(self._texts), "logprobs": self._logprobs(self._tokens)}

    def finish(self, end: End) -> str:
        return end.finish_reason

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        told = of_completion(tokens, self._characters, self._top)
        self._characters += sum(len(token.text) for token in tokens)
        return told


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """Of all choices: the prompt counts once, and as cached where it was for each of them, that is, before this request."""
    prompt, output = max(usage.prompt_tokens for usage in usages), sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": min(usage.cached_tokens for usage in usages)},
    }


def _call_ids(step: StepId, choice: int) -> Callable[[int], str]:
    """Ids follow from the step, so that a recorded answer has the same whenever it is asked for."""
    return lambda number: hashlib.sha256(f"{step}.{choice}.{number}".encode()).hexdigest()[:CALL_ID_DIGITS]
