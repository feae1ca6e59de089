"""The shapes of OpenAI's request bodies, and what in them asks for nothing.

Sources: OpenAI's API reference, chat and completions (https://platform.openai.com/docs/api-reference); top_k, min_p, repetition_penalty,
min_tokens, ignore_eos, stop_token_ids, json_schema, regex, ebnf and chat_template_kwargs as in SGLang; nvext as in nvext.py.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.gateway.nvext import NvExt
from shared.contracts.steps import TOOLS_MAX


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class RequestMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that are None here come back empty when a client sends a reply of ours as history."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: None = None


class FormatSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` makes no difference: an output always follows its schema."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: FormatSchema | None = None


class RequestFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict`: the arguments follow their schema, which they do where a call is demanded."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class RequestTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: RequestFunction


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class ChosenTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: ChosenFunction


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both doors take. What is Any is not supported; the NEUTRAL tables have the values that ask for nothing."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    nvext: NvExt | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None


class ChatBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[RequestMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[RequestTool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    response_format: ResponseFormat | None = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


Neutral = dict[str, tuple[object, ...]]  # name of a parameter -> the values, besides null, that ask for nothing
_NEUTRAL: Neutral = {"metadata": ({},), "store": (False,), "service_tier": ("auto", "default")}
NEUTRAL_CHAT: Neutral = _NEUTRAL | {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": (),
    "web_search_options": (),
}
NEUTRAL_COMPLETION: Neutral = _NEUTRAL | {"best_of": (1,), "echo": (False,), "suffix": ("",)}
