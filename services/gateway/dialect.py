"""OpenAI's request bodies in, submissions out. Pure.

Rule: a parameter is either honoured or refused by its name, never ignored. Those that Legato does not know are refused in any value, those
of `Neutral` in any value that would change something. What comes out is a submission that admission can read: ranges are checked by
decoding it as admission does, so that they stand in one place (shared/contracts/steps.py).

Shapes: shapes.py. Headers: Authorization, X-Legato-Timeout-Ms, X-Legato-Priority, and those of belonging.py. Several choices are several
submissions, which differ in seed and name only (shared/core/several.py).
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.belonging import STEP_KEY, Belonging, read_belonging
from services.gateway.nvext import NEUTRAL as NEUTRAL_NVEXT
from services.gateway.nvext import session_of
from services.gateway.shapes import (
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    Body,
    ChatBody,
    CompletionBody,
    Neutral,
    RequestMessage,
    ResponseFormat,
    StreamOptions,
)
from services.gateway.tools import ToolUse, read_tools
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage, Sampling, Submission
from shared.core.choices import choices_at
from shared.core.several import choice, choice_key
from shared.core.workflows import NAME_CHARS_MAX, Unfit

COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's default of max_tokens in /v1/completions; chat has none
NAME_MAX = 64  # characters of a name that are repeated to its sender
CHOICES_MAX = 16  # where nobody says otherwise
TEXT_MAX = 200  # characters of a complaint, which may quote a value
_HEADERS = {"timeout_ms": "X-Legato-Timeout-Ms", "priority": "X-Legato-Priority"}
_INTEGER = re.compile(r"-?[0-9]{1,12}")


_ANY_OBJECT = '{"type":"object"}'  # the schema of response_format json_object
_SAMPLING = tuple(name for name in Sampling.__struct_fields__ if name not in ("max_tokens", "stop", "logprobs"))

_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_SUBMISSION = msgspec.json.Decoder(Submission)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be submitted: `data` is its submission, encoded."""

    submission: Submission
    data: bytes
    n: int = 1  # choices
    tools: ToolUse = ToolUse()
    names: Mapping[str, str] = {}  # of what has another name in the submission: that one -> as sent
    stream: bool = False
    include_usage: bool = False
    belonging: Belonging | None = None

    @property
    def chat(self) -> bool:
        return self.submission.messages is not None

    def choice(self, index: int) -> "Asked":
        """The request of one choice, counted from 0."""
        if index == 0:
            return self
        submission, belonging = choice(self.submission, index), self.belonging
        if belonging is not None:
            belonging = msgspec.structs.replace(belonging, name=choice_key(belonging.name, index))
        return msgspec.structs.replace(self, submission=submission, data=msgspec.json.encode(submission), belonging=belonging)


class _Refused(Exception):
    """Ends the reading of a request; never leaves this module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_request(body: bytes, headers: Mapping[str, str], *, chat: bool, choices_max: int = CHOICES_MAX) -> Asked | Problem:
    """The request of one HTTP body, or what is wrong with it."""
    try:
        asked = _read_chat(body, headers) if chat else _read_completion(body, headers)
        _check_choices(asked, choices_max)
        return asked
    except (_Refused, Unfit) as refused:
        return refused.problem
    except msgspec.ValidationError as error:
        return explain(error, ChatBody if chat else CompletionBody)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Problem(reason=Reason.INVALID, message=f"the body should be JSON: {error}")
    except RecursionError:
        return Problem(reason=Reason.INVALID, message="the body is nested too deeply")


def _read_chat(data: bytes, headers: Mapping[str, str]) -> Asked:
    body = _CHAT.decode(data)
    _refuse_unsupported(body, NEUTRAL_CHAT)
    if body.top_logprobs is not None and not body.logprobs:
        raise _invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    given, limit = "max_tokens", body.max_tokens
    if body.max_completion_tokens is not None:
        if limit is not None and limit != body.max_completion_tokens:
            raise _invalid("max_tokens", "max_tokens and max_completion_tokens differ; give one of them")
        given, limit = "max_completion_tokens", body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    messages = [_message(message, index) for index, message in enumerate(body.messages)]
    tools, use, sampling = read_tools(body, _formatted(_sampling(body, limit, logprobs), body.response_format))
    common, belonging = _common(body, headers)
    said = _said_to_template(body)
    submission = Submission(model=body.model, messages=messages, tools=tools, chat_template_kwargs=said, sampling=sampling, **common)
    names = {"max_tokens": given, "logprobs": "logprobs" if body.top_logprobs is None else "top_logprobs"}
    if body.json_schema is None:
        names["json_schema"] = "tool_choice" if use.demanded else "response_format"
    if body.reasoning_effort is not None:
        names["chat_template_kwargs.reasoning_effort"] = "reasoning_effort"
    return msgspec.structs.replace(_asked(body, submission, belonging, names), tools=use)


def _read_completion(data: bytes, headers: Mapping[str, str]) -> Asked:
    body = _COMPLETION.decode(data)
    _refuse_unsupported(body, NEUTRAL_COMPLETION)
    limit = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    sampling = _sampling(body, limit, body.logprobs)
    common, belonging = _common(body, headers)
    submission = Submission(model=body.model, prompt=_prompt(body.prompt), sampling=sampling, **common)
    return _asked(body, submission, belonging, {})


def _check_choices(asked: Asked, choices_max: int) -> None:
    if asked.n > choices_max:
        raise _invalid("n", f"n is at most {choices_max} here, not {asked.n}")
    if len(choice_key(asked.submission.step_key, asked.n - 1)) > NAME_CHARS_MAX:
        raise _invalid(STEP_KEY, f"{STEP_KEY} and the number of a choice have at most {NAME_CHARS_MAX} characters together")


def _asked(body: Body, submission: Submission, belonging: Belonging | None, names: Mapping[str, str]) -> Asked:
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "stream_options needs stream to be true")
    options = body.stream_options or StreamOptions()
    if options.include_obfuscation:
        raise _unsupported("stream_options.include_obfuscation")
    data = msgspec.json.encode(submission)
    try:
        _SUBMISSION.decode(data)
    except msgspec.ValidationError as error:
        raise _Refused(explain(error, Submission, names)) from error
    stream, usage = bool(body.stream), bool(options.include_usage)
    asked = Asked(submission=submission, data=data, names=names, stream=stream, include_usage=usage, belonging=belonging)
    return msgspec.structs.replace(asked, n=1 if body.n is None else body.n)


# --- parts of a request ------------------------------------------------------------------------------------------------------


def _refuse_unsupported(body: Body, neutral: Neutral) -> None:
    _refuse_unless(body, neutral, "")
    if body.nvext is not None:
        _refuse_unless(body.nvext, NEUTRAL_NVEXT, "nvext.")


def _refuse_unless(given: msgspec.Struct, neutral: Neutral, prefix: str) -> None:
    for name, allowed in neutral.items():
        value = getattr(given, name)
        if value is not None and not any(type(value) is type(each) and value == each for each in allowed):
            raise _unsupported(prefix + name)


def _sampling(body: Body, max_tokens: int | None, logprobs: int | None) -> Sampling:
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.stop is not None:
        given["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.nvext is not None and body.nvext.greed_sampling:
        given["temperature"] = 0.0
    for token in body.logit_bias or ():
        if not (token.isascii() and token.isdecimal()):
            raise _invalid("logit_bias", f"the keys of logit_bias should be token ids, not {token[:NAME_MAX]!r}")
    return Sampling(max_tokens=max_tokens, logprobs=logprobs, **given)


def _formatted(sampling: Sampling, form: ResponseFormat | None) -> Sampling:
    """Sampling with the schema of OpenAI's response_format."""
    if form is None or (form.type == "text" and form.json_schema is None):
        return sampling
    if sampling.json_schema is not None:
        raise _invalid("json_schema", "response_format and json_schema say the same; give one of them")
    if (form.type == "json_schema") != (form.json_schema is not None):
        raise _invalid("response_format.json_schema", "response_format needs json_schema with the type json_schema, and with no other")
    schema = _ANY_OBJECT if form.json_schema is None else msgspec.json.encode(form.json_schema.schema).decode()
    return msgspec.structs.replace(sampling, json_schema=schema)


def _said_to_template(body: ChatBody) -> dict[str, Any]:
    said = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None and said.setdefault("reasoning_effort", body.reasoning_effort) != body.reasoning_effort:
        raise _invalid("reasoning_effort", "reasoning_effort and chat_template_kwargs.reasoning_effort differ; give one of them")
    return said


def _message(message: RequestMessage, index: int) -> ChatMessage:
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    if content is None and not message.tool_calls:
        raise _invalid(f"messages[{index}].content", "a message needs content")
    for number, call in enumerate(message.tool_calls or ()):
        function = call.get("function")
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and isinstance(function.get("arguments"), str)):
            place = f"messages[{index}].tool_calls[{number}]"
            raise _invalid(f"{place}.function", f"{place}.function should have a name and arguments, both strings")
    return ChatMessage(
        role=message.role,
        content=content,
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _prompt(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if all(isinstance(token, int) for token in prompt):
        return prompt  # type: ignore[return-value]  # all are, says the line above
    if len(prompt) != 1:
        raise _invalid("prompt", "one request takes one prompt: a string, or a list of token ids", Reason.UNSUPPORTED)
    return prompt[0]  # type: ignore[return-value]  # the only int was handled above


def _common(body: Body, headers: Mapping[str, str]) -> tuple[dict[str, Any], Belonging | None]:
    """What every submission says of itself, and the workflow that it belongs to."""
    common: dict[str, Any] = {"key": _key(headers), "user": body.user or ""}
    for field, name in _HEADERS.items():
        text = headers.get(name, "").strip()
        if text:
            if not _INTEGER.fullmatch(text):
                raise _invalid(name, f"{name} should be an integer")
            common[field] = int(text)
    hints = body.nvext.agent_hints if body.nvext is not None else None
    if hints is not None and hints.priority is not None and hints.priority != common.setdefault("priority", hints.priority):
        raise _invalid("nvext.agent_hints.priority", f"nvext.agent_hints.priority and {_HEADERS['priority']} differ; give one of them")
    belonging = read_belonging(headers, common["key"], session_of(body.nvext, headers))
    if belonging is not None:
        common["workflow"], common["step_key"] = belonging.workflow, belonging.name
    return common, belonging


def read_key(headers: Mapping[str, str]) -> str | Problem:
    """Who asks: `sha256:…` of the API key, empty where there is none."""
    try:
        return _key(headers)
    except _Refused as refused:
        return refused.problem


def _key(headers: Mapping[str, str]) -> str:
    """What the fleet is told of an API key: never the key itself."""
    authorization = headers.get("Authorization", "")
    if not authorization:
        return ""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        message = "the Authorization header should be `Bearer <API key>`"
        raise _Refused(Problem(reason=Reason.UNAUTHENTICATED, message=message, param="Authorization"))
    return f"sha256:{hashlib.sha256(key.strip().encode('utf-8', 'surrogateescape')).hexdigest()}"


# --- refusals ----------------------------------------------------------------------------------------------------------------

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def explain(error: msgspec.ValidationError, kind: Any, names: Mapping[str, str] | None = None) -> Problem:
    """msgspec's `Expected X, got Y - at $.a.b` as a refusal that names the parameter. `kind`: what was read. `names`: field of the
    submission -> as sent."""
    text, _, path = str(error).rpartition(" - at `") if " - at `" in str(error) else (str(error), "", "")
    where = path.rstrip("`").removeprefix("$").removeprefix(".").removeprefix("sampling.")
    where = (names or {}).get(where) or _HEADERS.get(where, where)
    if found := _UNKNOWN.fullmatch(text) or _MISSING.fullmatch(text):
        param = f"{where}.{found[1][:NAME_MAX]}".removeprefix(".")
        if found.re is _UNKNOWN:
            return _unsupported(param).problem
        return Problem(reason=Reason.INVALID, message=f"{param} is missing", param=param)
    if where.startswith("messages[") and where.endswith(".type"):  # of a content part
        return Problem(reason=Reason.UNSUPPORTED, message=f"{where}: only text is supported", param=where)
    what = text.replace("`", "")[:TEXT_MAX]
    if choices := choices_at(kind, path.rstrip("`")):
        what += f"; there are: {', '.join(choices)}"
    return Problem(reason=Reason.INVALID, message=f"{where}: {what}" if where else what, param=where)


def _invalid(param: str, message: str, reason: Reason = Reason.INVALID) -> _Refused:
    return _Refused(Problem(reason=reason, message=message, param=param))


def _unsupported(param: str) -> _Refused:
    return _invalid(param, f"{param} is not supported", Reason.UNSUPPORTED)
