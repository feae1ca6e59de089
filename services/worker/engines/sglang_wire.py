"""SGLang's /generate on the wire: what is sent for a request, and what its events mean. No I/O."""

import hashlib
from typing import Any

import msgspec

from services.worker.engines.base import EngineChunk, EngineError, EngineRequest
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.output import TokenLogprob, TopLogprob
from shared.contracts.steps import GRAMMARS

EVENT_BYTES_MAX = 8 * 1024 * 1024  # of one server-sent event; a token with 20 alternatives takes about 1 KB
TOP_K_ALL = 1 << 30  # SGLang's own "all"; one beyond 32 bits ends the server
LOGPROB_MIN = -9999.0  # stands for minus infinity, which JSON cannot hold (OpenAI's API does the same)


def request_id(step: StepId, attempt: int, serial: int) -> str:
    """The engine's name for one request; `serial` is the engine's own count. An attempt may have several requests, one after the other
    (a take-over warms the cache before it goes on), and no id may be used again: 2 s after the end of a response, SGLang 0.5.23 aborts
    whatever then has its id. It also aborts every request whose id *begins* with the one given: hence the last dot."""
    return f"{step}.{attempt}.{serial}."


def check(request: EngineRequest, card: ModelCard) -> None:
    """Refuse what SGLang would refuse, or die of (an id outside the vocabulary ends the whole server). Raises EngineError."""
    tokens, resumed, stops = request.tokens, request.resumed, request.sampling.stop_token_ids
    if not tokens:
        raise EngineError("the prompt is empty", reason=Reason.INVALID, retryable=False)
    if request.adapter:
        raise EngineError(f"adapters are not loaded into SGLang yet, so not {request.adapter!r} either", retryable=False)
    for name, ids in (("prompt", tokens), ("resumed tokens", resumed), ("stop_token_ids", stops)):
        if ids and not (min(ids) >= 0 and max(ids) < card.vocab_size):
            message = f"{name}: token ids must be within 0 and {card.vocab_size - 1}"
            raise EngineError(message, reason=Reason.INVALID, retryable=False)
    if len(tokens) + request.max_tokens > card.context_tokens:
        message = f"{len(tokens)} prompt tokens and {request.max_tokens} to generate do not fit into {card.context_tokens}"
        raise EngineError(message, reason=Reason.CONTEXT_TOO_LONG, retryable=False)
    neutral = type(request.sampling)()
    for name in card.unsupported:
        if getattr(request.sampling, name) != getattr(neutral, name):
            raise EngineError(f"{name} is not supported by this engine", reason=Reason.UNSUPPORTED, retryable=False)


def finished_before(request: EngineRequest, card: ModelCard) -> FinishReason | None:
    """Why a resumed request has nothing left to do, if so: the attempt before was lost between its last token and its end."""
    resumed, sampling = request.resumed, request.sampling
    if len(resumed) >= request.max_tokens:  # SGLang, too, looks at the length first
        return FinishReason.LENGTH
    ends = () if sampling.ignore_eos else (*sampling.stop_token_ids, *card.eos_token_ids)  # SGLang's ignore_eos covers both
    return FinishReason.STOP if resumed and resumed[-1] in ends else None


def request_body(request: EngineRequest, rid: str) -> dict[str, Any]:
    """The JSON of POST /generate. `rid`: the engine's name for it. Stop strings stay with Legato's output processor."""
    asked = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": request.max_tokens - len(request.resumed),
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": min(asked.top_k, TOP_K_ALL) if asked.top_k > 0 else -1,
        "min_p": asked.min_p,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "repetition_penalty": asked.repetition_penalty,
        "min_new_tokens": max(0, asked.min_tokens - len(request.resumed)),
        "ignore_eos": asked.ignore_eos,
        "sampling_seed": asked.seed if asked.seed is not None else seed_of(request.step),
    }
    if asked.stop_token_ids:
        params["stop_token_ids"] = asked.stop_token_ids
    if asked.logit_bias:
        params["logit_bias"] = asked.logit_bias
    params |= {name: grammar for name in GRAMMARS if (grammar := getattr(asked, name)) is not None}  # it has the same names
    if request.resumed:
        params["custom_params"] = {"resume_len": len(request.resumed)}
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": [*request.tokens, *request.resumed],
        "sampling_params": params,
        "priority": request.priority,
        "stream": True,
    }
    if asked.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": asked.logprobs}
    return body


def request_headers(request: EngineRequest) -> dict[str, str]:
    """The trace that the step belongs to (W3C Trace Context); SGLang's own spans join it where it is started with --enable-trace."""
    return {"traceparent": request.trace} if request.trace else {}


def seed_of(step: StepId) -> int:
    """A seed for a step that names none, the same for all its attempts. By itself, a deterministic SGLang seeds them all with 42."""
    return int.from_bytes(hashlib.sha256(step.encode()).digest()[:8], "big") >> 1


class EventSplitter:
    """Cuts a body of server-sent events into the data of each event, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The events completed by `piece`. Raises EngineError when one grows beyond EVENT_BYTES_MAX."""
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EngineError(f"SGLang sent an event of more than {EVENT_BYTES_MAX} bytes", reason=Reason.INTERNAL, retryable=True)
        return [event[6:] for event in events if event.startswith(b"data: ")]


LogprobTuple = tuple[float | None, int, str | None]


class _Finish(msgspec.Struct, frozen=True):
    type: str
    message: str = ""
    status_code: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Finish | None = None
    cached_tokens: int = 0
    output_token_logprobs: list[LogprobTuple] = []
    output_top_logprobs: list[list[LogprobTuple] | None] = []


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 500


class _Event(msgspec.Struct, frozen=True):
    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Event)


def read_event(data: bytes, request: EngineRequest, *, aborted: bool) -> EngineChunk:
    """One event as a chunk. Raises EngineError when SGLang reports one. `aborted`: we asked for the end of this request."""
    event = _decoder.decode(data)
    if event.error is not None:
        raise refusal(event.error.code, event.error.message)
    meta = event.meta_info
    finish = None if meta.finish_reason is None else _finish(meta.finish_reason, aborted)
    return EngineChunk(
        tokens=event.output_ids,
        logprobs=_logprobs(meta, request.sampling.logprobs or 0),
        cached_tokens=meta.cached_tokens,
        finish=finish,
    )


def _finish(reason: _Finish, aborted: bool) -> FinishReason:
    if reason.type != "abort":
        return FinishReason(reason.type)
    if not aborted and reason.status_code is not None:
        raise refusal(reason.status_code, reason.message)
    return FinishReason.CANCELLED


def refusal(status: int, message: str) -> EngineError:
    """SGLang's "no" as an error: below 500 the request is at fault and no other worker would take it either."""
    reason = Reason.INVALID if message.startswith("Failed to compile ") else Reason.ENGINE_REJECTED  # a grammar: the caller's mistake
    return EngineError(f"SGLang answered {status}: {message[:1000]}", reason=reason, retryable=status >= 500)


def _logprobs(meta: _Meta, top: int) -> list[TokenLogprob]:
    chosen = meta.output_token_logprobs
    ranked = meta.output_top_logprobs if top else []
    rows = [*ranked, *([None] * (len(chosen) - len(ranked)))]
    return [
        TokenLogprob(token=token, text="", logprob=_number(value), top=_top(row))
        for (value, token, _), row in zip(chosen, rows, strict=True)
    ]


def _top(row: list[LogprobTuple] | None) -> list[TopLogprob]:
    return [TopLogprob(token, "", _number(value)) for value, token, _ in row or []]


def _number(value: float | None) -> float:
    return LOGPROB_MIN if value is None else value
