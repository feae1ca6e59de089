"""A step's way through the fleet, from the event log: what happened, when, by whom and why."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from legato.machines import DECIDERS
from shared.contracts import steps, subjects
from shared.contracts.catalogue import CATALOGUE
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Usage
from shared.contracts.output import Output
from shared.contracts.streams import OUT, PROMPTS, STEPS
from shared.runtime.bus import Bus
from shared.runtime.cursor import Record

_TYPES: dict[str, type[msgspec.Struct]] = {str(kind.type.__struct_config__.tag): kind.type for kind in CATALOGUE}


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `at_ns`: when NATS stored it (Unix); `ms`: since the first one; `id`: of the message, which `legato replay --at` takes."""

    at_ns: int
    ms: float = 0.0
    what: str
    who: str = ""
    why: str = ""
    id: str = ""
    message: msgspec.Raw = msgspec.Raw(b"{}")


async def read_history(bus: Bus, step: StepId) -> list[Happening]:
    """All that the streams still have of a step, in order; empty if nothing."""
    found = [_submitted(record) async for record in _all(bus, STEPS.name, subjects.submit(step))]
    found += [_event(record) async for record in _all(bus, PROMPTS.name, subjects.prompt(step))]
    found += [_event(record) async for record in _all(bus, STEPS.name, subjects.step_history(step))]
    found += [_cancelled(record) async for record in _all(bus, STEPS.name, subjects.cancel(step))]
    found += await _outputs(bus, step)
    found.sort(key=lambda happening: happening.at_ns)
    return [msgspec.structs.replace(each, ms=(each.at_ns - found[0].at_ns) / 1e6) for each in found]


async def _all(bus: Bus, stream: str, subject: str) -> AsyncIterator[Record]:
    """A few records, each with the time at which it was stored (which a cursor's records lack)."""
    seq = 0
    while (record := await bus.next_after(stream, subject, seq)) is not None:
        seq = record.seq
        yield record


# --- one event in words ------------------------------------------------------------------------------------------------------


def _submitted(record: Record) -> Happening:
    body = _decoded(record.data, dict)
    messages = body.get("messages")
    said = f"{len(messages)} message(s)" if isinstance(messages, list) else "a stored conversation" if body.get("history") else "a prompt"
    timeout = f", within {body['timeout_ms']} ms" if body.get("timeout_ms") else ""
    return _happening(record, "submitted", "client", f"{said} for {body.get('model', '?')}{timeout}")


def _cancelled(record: Record) -> Happening:
    return _happening(record, "cancel requested", "client", str(_decoded(record.data, dict).get("why", "")))


def _event(record: Record) -> Happening:
    tag = str(_decoded(record.data, dict).get("type", ""))
    kind = _TYPES.get(tag)
    message = _decoded(record.data, kind) if kind else None
    if not isinstance(message, Message):
        return _happening(record, tag or record.subject, "?", "")
    what, why = _words(message)
    return _happening(record, what, _who(message), why, message.id)


def _words(message: Message) -> tuple[str, str]:
    match message:
        case steps.Prompt():
            return "prompt stored", f"{len(message.tokens)} tokens, {len(message.blocks)} full blocks"
        case steps.StepAdmitted(job=job):
            return "admitted", f"at most {job.max_tokens} tokens for tenant {message.tenant or '-'}, priority {job.priority}"
        case steps.StepRouted():
            return "routed", f"{message.job.model} in cell {message.cell}"
        case steps.StepDispatched():
            return f"dispatched ({message.attempt})", f"to {message.worker}{_dash(message.why)}"
        case steps.StepRevoked():
            return f"revoked ({message.attempt})", f"from {message.worker}: {message.reason}"
        case steps.AttemptEnded():
            times = f"queued {message.queued_ms:.1f} ms, first token {message.ttft_ms:.1f} ms, all {message.total_ms:.1f} ms"
            return f"attempt ended ({message.attempt})", f"{message.status}, {_usage(message.usage)}; {times}{_because(message.problem)}"
        case steps.StepSettled():
            return "settled", f"{message.status}, {_usage(message.usage)}{_because(message.problem)}"
        case steps.StepRefused() | steps.StepClosed():
            return str(message.__struct_config__.tag).removeprefix("step."), f"{message.problem.message} ({message.problem.reason})"
    return str(message.__struct_config__.tag), ""


def _who(message: Message) -> str:
    if isinstance(message, steps.AttemptEnded):
        return message.worker
    if isinstance(message, steps.Prompt):
        return "admission"
    return _service(message.id)


def _service(message_id: str) -> str:
    """Machines name their messages `<service>.<partition>.…`; the workflow service, which is none, after the step."""
    service = message_id.partition(".")[0]
    return service if service in DECIDERS else "workflow"


def _usage(usage: Usage) -> str:
    return f"{usage.prompt_tokens} in ({usage.cached_tokens} cached), {usage.output_tokens} out"


def _because(problem: Problem | None) -> str:
    return _dash(f"{problem.message} ({problem.reason})") if problem else ""


def _dash(text: str) -> str:
    return f" - {text}" if text else ""


# --- outputs: the first of each attempt, and the end -------------------------------------------------------------------------


async def _outputs(bus: Bus, step: StepId) -> list[Happening]:
    subject = subjects.out(step)
    marked: list[tuple[int, Output]] = []
    attempt = -1
    async for record in bus.history(OUT.name, subject):
        output = _decoded(record.data, Output)
        if isinstance(output, Output) and (output.attempt != attempt or output.end is not None):
            attempt = output.attempt
            marked.append((record.seq, output))
    found = []
    for seq, output in marked:
        stored = await bus.next_after(OUT.name, subject, seq - 1)
        if stored is not None:
            found.append(_output(stored, output))
    return found


def _output(record: Record, output: Output) -> Happening:
    who = f"attempt {output.attempt}" if output.attempt else _service(output.id)
    if output.end is None:
        resumed = f"goes on at token {output.offset}" if output.offset else f"{len(output.tokens)} token(s)"
        return _happening(record, "first output", who, resumed, output.id)
    end = output.end
    said = f"{end.status}: {end.finish_reason}, {_usage(end.usage)}{_because(end.problem)}"
    return _happening(record, "output ended", who, said, output.id)


def _happening(record: Record, what: str, who: str, why: str, message_id: str = "") -> Happening:
    return Happening(at_ns=record.stored_ns, what=what, who=who, why=why, id=message_id, message=_raw(record.data))


def _raw(data: bytes) -> msgspec.Raw:
    return msgspec.Raw(data) if _decoded(data, dict) else msgspec.Raw(b"{}")


def _decoded(data: bytes, kind: Any) -> Any:
    """What it says, or {} where it does not say it in our words: a door takes anything, and a timeline must show it all the same."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return {}
