"""Chat templates: compiled once, and what may be said to one of them. The template is the model's own: whatever it raises is about the
messages.

Rule: what a template would leave out silently is refused by its name. Tools are an exception where the output has a form of its own
(a grammar makes the calls sure, whether or not the model has seen what its tools are for).
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.admission.refusal import invalid, plain
from shared.contracts.fleet import ModelCard
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import GRAMMARS, ChatMessage, Submission

_OURS = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "documents"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """`variables`: the names that it asks for from outside."""

    compiled: jinja2.Template
    variables: frozenset[str]
    knows_calls: bool  # of earlier turns

    def render(self, submission: Submission, card: ModelCard) -> str | Problem:
        """The conversation as the model reads it, or why it cannot be written."""
        problem = self._left_out(submission, card)
        if problem is not None:
            return problem
        more = {name: value for name, value in submission.chat_template_kwargs.items() if name in self.variables}
        if submission.tools is not None:
            more["tools"] = [msgspec.to_builtins(tool) for tool in submission.tools]
        try:
            given = [_message(message) for message in submission.messages or []]
            return self.compiled.render(
                messages=given, add_generation_prompt=True, bos_token=card.bos_token, eos_token=card.eos_token, **more
            )
        except Exception as error:
            return invalid(f"the chat template of {card.name} refuses these messages: {error or type(error).__name__}", "messages")

    def _left_out(self, submission: Submission, card: ModelCard) -> Problem | None:
        formed = any(getattr(submission.sampling, name) is not None for name in GRAMMARS)
        if submission.tools is not None and "tools" not in self.variables and not formed:
            why = f"the chat template of {card.name} says nothing of tools, so the model would not see them"
            return _unsupported(f"{why}; without a template that does, only calls that the request demands can be had", "tools")
        for index, message in enumerate(submission.messages or []):
            if message.tool_calls and not self.knows_calls:
                why = f"the chat template of {card.name} says nothing of tool_calls, so the model would not see these"
                return _unsupported(f"{why}; write them into the content", f"messages[{index}].tool_calls")
        for name, value in submission.chat_template_kwargs.items():
            param = f"chat_template_kwargs.{name}"
            if name in _OURS:
                return invalid(f"{plain(name)} is not for the request to say", param)
            if name not in self.variables and not (name == "reasoning_effort" and value == "none" and not card.reasoning_parser):
                return _unsupported(f"the chat template of {card.name} does not know {plain(name)[:64]}; leave it out", param)
        return None


def compile_template(source: str) -> ChatTemplate:
    """With what chat templates expect around them (transformers' `apply_chat_template` sets the custom). Raises jinja2.TemplateError."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
    return ChatTemplate(compiled=environment.from_string(source), variables=variables, knows_calls="tool_calls" in source)


def _message(message: ChatMessage) -> dict[str, Any]:
    """As templates expect it: the arguments of a call as an object, where the text that OpenAI's clients send is one."""
    given: dict[str, Any] = msgspec.to_builtins(message)
    for call in given.get("tool_calls") or []:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(arguments, dict):
                function["arguments"] = arguments
    return given


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Unlike jinja2's own, for a model and not for HTML: nothing is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _unsupported(message: str, param: str) -> Problem:
    return msgspec.structs.replace(invalid(message, param), reason=Reason.UNSUPPORTED)
