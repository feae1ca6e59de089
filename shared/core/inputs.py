"""What makes two submissions the same, and what names a workflow's parts. Pure."""

import hashlib

import msgspec

from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.steps import Submission

DIGITS = 32  # hexadecimal, of a SHA-256

_ENCODER = msgspec.json.Encoder(order="deterministic")
# Who asks, how urgently and until when: these change nothing of the answer.
_ASIDE = {"key": "", "workflow": "", "step_key": "", "priority": 0, "timeout_ms": None, "user": ""}


def fingerprint(submission: Submission) -> str:
    """Of what is asked for: model, messages or prompt, and sampling."""
    asked = msgspec.structs.replace(submission, **_ASIDE)
    return hashlib.sha256(_ENCODER.encode(asked)).hexdigest()[:DIGITS]


def differences(first: Submission, second: Submission) -> list[str]:
    """Which parts of what is asked for differ, by name: `model`, `messages[2]`, `sampling.temperature`. A conversation that one of them
    refers to differs from messages as a whole (`messages`)."""
    names = [name for name in ("model", "prompt", "tools", "chat_template_kwargs") if getattr(first, name) != getattr(second, name)]
    old, new = first.messages or [], second.messages or []
    if first.history != second.history:
        old, new, names = [], [], [*names, "messages"]
    names += [f"messages[{index}]" for index in range(max(len(old), len(new))) if old[index : index + 1] != new[index : index + 1]]
    fields = type(first.sampling).__struct_fields__
    return names + [f"sampling.{name}" for name in fields if getattr(first.sampling, name) != getattr(second.sampling, name)]


def step_id(key: str, workflow: WorkflowId, name: str, number: int) -> StepId:
    """The id of the `number`-th try (from 1) of the step `name` of a workflow. It follows from what the program says, so that the same
    program finds its steps again; `key` (`sha256:…` of the API key) keeps one tenant's from being another's."""
    return StepId(f"wf-{_digest(key, workflow, name, str(number))}")


def session_workflow(key: str, session: str) -> WorkflowId:
    """The workflow that stands for a session which a client names by the headers of its agent: apart for each API key, since nobody
    chose the name to be the only one."""
    return WorkflowId(f"session-{_digest(key, session)}")


def name_token(name: str) -> str:
    """A name as one token of a NATS subject."""
    return _digest(name)


def _digest(*parts: str) -> str:
    text = "\0".join(part.replace("\\", "\\\\").replace("\0", "\\0") for part in parts)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
