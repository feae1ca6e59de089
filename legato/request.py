"""What `Client.submit` takes, and how it becomes a submission."""

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

import msgspec

from legato.outcome import Refused, Result
from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.steps import ChatMessage, Sampling, Submission
from shared.core.machine import ENCODER
from shared.core.several import choice_id, choice_key, choice_seed


class StepRequest(TypedDict, total=False):
    """The arguments of `submit` and `stream`: a model, exactly one of `messages` and `prompt`, and what else there is to say.

    Ranges are those of shared/contracts/steps.py; what is out of range is refused before it is sent.
    """

    model: Required[str]
    messages: Sequence[ChatMessage | Mapping[str, Any]]  # {"role": ..., "content": ...}
    prompt: str | Sequence[int]  # text, or token ids
    tools: Sequence[Mapping[str, Any]]  # as OpenAI has them; legato.parse finds the calls in the text
    chat_template_kwargs: Mapping[str, Any]  # what else the model's chat template is told, by name
    step_id: str  # letters, digits, - and _; submitting the same id again joins the step. Default: a new UUIDv7
    workflow: str
    step_key: str  # the step's name within its workflow; `Workflow.step` sets both
    priority: int  # -100 to 100, higher goes first
    timeout_ms: int  # must have finished within
    user: str
    trace: str  # W3C traceparent to continue; default: a new trace

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    logprobs: int
    ignore_eos: bool
    json_schema: str | Mapping[str, Any]  # at most one of these three: the form that the output must have
    regex: str
    ebnf: str


CHOICES_MAX = 128
NOT_SENT = ("step_id", "trace")


def to_submission(request: StepRequest, key: str) -> Submission:
    """The submission of a request. Raises Refused for a value that cannot be."""
    given = {name: value for name, value in request.items() if name not in NOT_SENT and value is not None}
    sampling = {name: given.pop(name) for name in Sampling.__struct_fields__ if name in given}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    if isinstance(sampling.get("json_schema"), Mapping):
        sampling["json_schema"] = ENCODER.encode(sampling["json_schema"]).decode()
    if ("messages" in given) == ("prompt" in given):
        raise refusal("give exactly one of messages and prompt", "messages")
    try:
        return msgspec.convert(msgspec.to_builtins({**given, "sampling": sampling, "key": key}), Submission)
    except (msgspec.ValidationError, TypeError) as error:
        message, _, path = str(error).partition(" - at `$.")
        param = path.rstrip("`").removeprefix("sampling.")
        raise refusal(f"{param}: {message[0].lower()}{message[1:]}" if param else message, param) from error


def check_number(n: int) -> None:
    """Of choices. Raises Refused for one that cannot be."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= CHOICES_MAX:
        raise refusal(f"n is a number from 1 to {CHOICES_MAX}, not {n!r}", "n")


def choice_request(request: StepRequest, index: int) -> StepRequest:
    """The request of one of several choices, counted from 0: the first is the request itself (shared/core/several.py)."""
    more: StepRequest = {**request}
    if (seed := request.get("seed")) is not None:
        more["seed"] = choice_seed(seed, index)
    if step_id := request.get("step_id"):
        more["step_id"] = choice_id(StepId(step_id), index)
    if name := request.get("step_key"):
        more["step_key"] = choice_key(name, index)
    return more


def encoded(submission: Submission) -> bytes:
    """As it is sent. Raises Refused for a text with lone surrogates, which is how Python reads bytes that are no text."""
    try:
        return ENCODER.encode(submission)
    except UnicodeEncodeError as error:
        raise refusal(f"a text of the request is no Unicode: {error.reason}") from error


def checked_id(step_id: str) -> StepId:
    """Raises Refused for an id that cannot stand in a NATS subject."""
    if not is_subject_token(step_id):
        raise refusal(f"a step id is 1 to 128 letters, digits, - and _; {step_id!r} is not", "step_id")
    return StepId(step_id)


def refusal(message: str, param: str = "") -> Refused:
    """A refusal that needs no fleet."""
    problem = Problem(reason=Reason.INVALID, message=message, param=param)
    return Refused(problem, Result(id=StepId(""), status=Status.REFUSED))
