"""From the bytes that somebody published to a submission, or to the reason why it is none. Pure; never raises, whatever the bytes.

What is wrong is said by name: the field, what it has, and what would be right. Nothing is ignored.
"""

import hashlib
import re
from collections.abc import Mapping

import msgspec

from services.admission.grammar import grammar_problem
from services.admission.refusal import invalid
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage, Sampling, Submission
from shared.contracts.subjects import step_of
from shared.core.tools import repeated
from shared.runtime.ids import parse_traceparent

COUNT_MAX = 2**31 - 1  # of sampling fields that count tokens: what engines hold in 32 bits
SEED_BITS = 31  # likewise

_DECODER = msgspec.json.Decoder(Submission)
_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_DEFAULTS = Sampling()


def step_from(subject: str) -> StepId | None:
    """The step id that a submission's subject ends with; None if it cannot be one."""
    step = step_of(subject)
    return step if is_subject_token(step) else None


def trace_from(headers: Mapping[str, str]) -> str:
    """The W3C traceparent, in its canonical form; empty if there is none that is valid."""
    context = parse_traceparent(headers.get("traceparent", ""))
    return str(context) if context else ""


def parse(data: bytes, bytes_max: int) -> Submission | Problem:
    """The submission, well-formed by itself; whether the model can take it is for `check`."""
    if len(data) > bytes_max:
        return Problem(reason=Reason.TOO_LARGE, message=f"the submission has {len(data)} bytes; at most {bytes_max} are taken")
    try:
        submission = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        return _misfit(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return invalid(f"the submission is no JSON: {error}")
    return _contradiction(submission) or _overflow(submission.sampling) or grammar_problem(submission.sampling) or submission


def check(submission: Submission, card: ModelCard) -> Problem | None:
    """What this model, or the engine under it, must not be given."""
    sampling = submission.sampling
    for field in card.unsupported:
        default = getattr(_DEFAULTS, field, None)
        if getattr(sampling, field, None) != default:
            message = f"{card.name} cannot take {field} on this engine; leave it out" + ("" if default is None else f" or at {default}")
            return Problem(reason=Reason.UNSUPPORTED, message=message, param=f"sampling.{field}")
    for token in sampling.stop_token_ids:
        if not 0 <= token < card.vocab_size:
            return beyond_vocabulary(card, str(token), "sampling.stop_token_ids")
    for text in sampling.logit_bias:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < card.vocab_size):
            return beyond_vocabulary(card, text, "sampling.logit_bias")
    if submission.messages is not None and not card.chat_template:
        return invalid(f"{card.name} has no chat template: give `prompt` instead of `messages`", "messages")
    return None


def seeded(sampling: Sampling, step: StepId, card: ModelCard) -> Sampling:
    """Sampling with a seed wherever chance decides, so that another worker can go on with the step exactly. It follows from the step id."""
    if sampling.seed is not None or sampling.temperature == 0 or "seed" in card.unsupported:
        return sampling
    digest = hashlib.sha256(step.encode()).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(digest[:4], "big") >> (32 - SEED_BITS))


def beyond_vocabulary(card: ModelCard, token: str, param: str) -> Problem:
    """`token`, which the model does not have: an engine must never see it."""
    return invalid(f"{token[:20]} is no token of {card.name}: its ids go from 0 to {card.vocab_size - 1}", param)


def _misfit(error: str) -> Problem:
    """msgspec's validation error, as its reader needs it."""
    place = _PLACE.fullmatch(error)
    what, path = (place["what"], place["path"]) if place else (error, "")
    unknown = _UNKNOWN.fullmatch(what)
    if unknown is None:
        return invalid(what.replace("`", ""), path)
    kind = ChatMessage if path.startswith("messages") else Sampling if path == "sampling" else Submission
    known = ", ".join(kind.__struct_fields__)
    name = f"{path}.{unknown['name']}" if path else unknown["name"]
    return invalid(f"unknown field {unknown['name'][:64]}; there are: {known}", name)


def _contradiction(submission: Submission) -> Problem | None:
    given = (submission.messages is not None) + bool(submission.history) + (submission.prompt is not None)
    if given != 1:
        many = "none of them is there" if not given else "not both" if given == 2 else "not all"
        return invalid(f"give one of `messages`, `history` and `prompt`; {many}", "messages")
    if submission.messages is None and not submission.history and (submission.tools or submission.chat_template_kwargs):
        name = "tools" if submission.tools else "chat_template_kwargs"
        return invalid(f"{name} is for the chat template: give `messages`, not `prompt`", name)
    if submission.tools and (twice := repeated(submission.tools)):
        return invalid(f"there are two tools named {twice}", "tools")
    if submission.workflow and not is_subject_token(submission.workflow):
        return invalid("a workflow id has up to 128 letters, digits, _ and -", "workflow")
    if submission.step_key and not submission.workflow:
        return invalid("a step key is a step's name within its workflow: give `workflow` too", "step_key")
    return None


def _overflow(sampling: Sampling) -> Problem | None:
    for field in ("max_tokens", "min_tokens", "top_k"):
        if (getattr(sampling, field) or 0) > COUNT_MAX:
            return invalid(f"Expected int <= {COUNT_MAX}", f"sampling.{field}")
    return None
