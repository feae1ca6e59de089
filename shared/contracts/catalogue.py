"""Every message: its subject, whether JetStream keeps it, who sends it and who listens. docs/asyncapi.json is generated from this table."""

from collections.abc import Callable
from typing import Any

import msgspec

from shared.contracts import fleet, journal, kv, output, steps, subjects, workflows
from shared.contracts.envelope import Message


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of message on the bus."""

    type: type[msgspec.Struct]
    subject: Callable[[Any], str]  # of one message, as it is published; listeners get it on `subjects.stored_as` of that
    pattern: str  # of all of them
    stored: bool  # captured by a stream, acknowledged by JetStream
    senders: tuple[str, ...]
    listeners: tuple[str, ...]


def _step(event: str) -> Callable[[Message], str]:
    return lambda m: subjects.step_event(m.step, event)


CATALOGUE: tuple[Kind, ...] = (
    Kind(
        type=steps.StepAdmitted,
        subject=_step("admitted"),
        pattern=subjects.ADMITTED,
        stored=True,
        senders=("admission", "workflow"),
        listeners=("router", "workflow"),
    ),
    Kind(
        type=steps.StepRefused,
        subject=_step("refused"),
        pattern=subjects.REFUSED,
        stored=True,
        senders=("admission",),
        listeners=("admission", "workflow"),
    ),
    Kind(
        type=steps.StepRouted,
        subject=lambda m: subjects.step_event(m.step, f"routed.{m.cell}"),
        pattern="legato.step.*.routed.*",
        stored=True,
        senders=("router",),
        listeners=("scheduler",),
    ),
    Kind(
        type=steps.StepDispatched,
        subject=lambda m: subjects.step_event(m.step, f"dispatched.{m.worker}"),
        pattern="legato.step.*.dispatched.*",
        stored=True,
        senders=("scheduler",),
        listeners=("worker", "workflow"),
    ),
    Kind(
        type=steps.StepRevoked,
        subject=lambda m: subjects.step_event(m.step, f"revoked.{m.worker}"),
        pattern="legato.step.*.revoked.*",
        stored=True,
        senders=("scheduler",),
        listeners=("worker",),
    ),
    Kind(
        type=steps.AttemptEnded,
        subject=lambda m: subjects.step_event(m.step, f"ended.{m.cell}"),
        pattern="legato.step.*.ended.*",
        stored=True,
        senders=("worker", "workflow"),
        listeners=("admission", "scheduler", "workflow", "router"),
    ),
    Kind(
        type=steps.StepClosed,
        subject=_step("closed"),
        pattern=subjects.CLOSED,
        stored=True,
        senders=("scheduler", "router", "workflow"),
        listeners=("admission", "scheduler", "workflow"),
    ),
    Kind(
        type=steps.StepSettled,
        subject=_step("settled"),
        pattern=subjects.SETTLED,
        stored=True,
        senders=("workflow",),
        listeners=("admission",),
    ),
    Kind(
        type=steps.CancelRequested,
        subject=lambda m: subjects.cancel(m.step),
        pattern=subjects.CANCEL,
        stored=True,
        senders=("client", "gateway"),
        listeners=("scheduler",),
    ),
    Kind(
        type=workflows.WorkflowOpened,
        subject=lambda m: subjects.workflow_event(m.workflow, "opened"),
        pattern="legato.workflow.*.opened",
        stored=True,
        senders=("client",),
        listeners=("admission", "workflow"),
    ),
    Kind(
        type=workflows.BudgetSet,
        subject=lambda m: subjects.workflow_event(m.workflow, "budget"),
        pattern="legato.workflow.*.budget",
        stored=True,
        senders=("client",),
        listeners=("admission", "workflow"),
    ),
    Kind(
        type=workflows.ValueRecorded,
        subject=lambda m: subjects.workflow_event(m.workflow, f"value.{m.token}"),
        pattern="legato.workflow.*.value.*",
        stored=True,
        senders=("client",),
        listeners=("workflow",),
    ),
    Kind(
        type=workflows.WorkflowClosed,
        subject=lambda m: subjects.workflow_event(m.workflow, "closed"),
        pattern="legato.workflow.*.closed",
        stored=True,
        senders=("client",),
        listeners=("workflow",),
    ),
    Kind(
        type=steps.Prompt,
        subject=lambda m: subjects.prompt(m.step),
        pattern=subjects.PROMPT,
        stored=True,
        senders=("admission",),
        listeners=("kv_registry", "worker"),
    ),
    Kind(
        type=output.Output,
        subject=lambda m: subjects.outbox(m.step),
        pattern=subjects.OUTBOX,
        stored=True,
        senders=("worker", "admission", "router", "scheduler", "workflow"),
        listeners=("client", "gateway"),
    ),
    Kind(
        type=fleet.WorkerRegistered,
        subject=lambda m: subjects.worker(m.worker),
        pattern=subjects.WORKERS,
        stored=True,
        senders=("worker",),
        listeners=("admission", "router", "scheduler", "kv_registry", "autoscaler"),
    ),
    Kind(
        type=fleet.WorkerGone,
        subject=lambda m: subjects.worker(m.worker),
        pattern=subjects.WORKERS,
        stored=True,
        senders=("worker",),
        listeners=("admission", "router", "scheduler", "kv_registry", "autoscaler"),
    ),
    Kind(
        type=fleet.WorkerVanished,
        subject=lambda m: subjects.vanished(m.cell),
        pattern="legato.vanished.*",
        stored=False,
        senders=("scheduler",),
        listeners=("scheduler",),
    ),
    Kind(
        type=fleet.WorkerBeat,
        subject=lambda m: subjects.beat(m.worker),
        pattern=subjects.BEATS,
        stored=False,
        senders=("worker",),
        listeners=("scheduler", "kv_registry", "autoscaler"),
    ),
    Kind(
        type=fleet.QueueReported,
        subject=lambda m: subjects.queue(m.cell),
        pattern=subjects.QUEUES,
        stored=False,
        senders=("scheduler",),
        listeners=("admission", "router", "autoscaler"),
    ),
    Kind(
        type=fleet.ScaleTargetSet,
        subject=lambda m: subjects.target(m.cell, m.pool),
        pattern=subjects.TARGETS,
        stored=True,
        senders=("autoscaler",),
        listeners=("actuator",),
    ),
    Kind(
        type=kv.KvChanged,
        subject=lambda m: subjects.kv(m.worker),
        pattern=subjects.KV,
        stored=False,
        senders=("worker",),
        listeners=("kv_registry",),
    ),
    Kind(
        type=kv.KvSnapshot,
        subject=lambda m: subjects.kv(m.worker),
        pattern=subjects.KV,
        stored=False,
        senders=("worker",),
        listeners=("kv_registry",),
    ),
    Kind(
        type=kv.KvResyncRequested,
        subject=lambda m: subjects.kv_resync(m.worker),
        pattern="legato.resync.*",
        stored=False,
        senders=("kv_registry",),
        listeners=("worker",),
    ),
    Kind(
        type=kv.PrefixMatched,
        subject=lambda m: subjects.match(m.cell),
        pattern="legato.match.*",
        stored=False,
        senders=("kv_registry",),
        listeners=("scheduler",),
    ),
    Kind(
        type=journal.JournalOpened,
        subject=lambda m: subjects.journal(m.service, m.partition),
        pattern="legato.journal.*.*",
        stored=True,
        senders=("every machine",),
        listeners=("replay",),
    ),
    Kind(
        type=journal.JournalBatch,
        subject=lambda m: subjects.journal(m.service, m.partition),
        pattern="legato.journal.*.*",
        stored=True,
        senders=("every machine",),
        listeners=("replay",),
    ),
    Kind(
        type=journal.DeadLetter,
        subject=lambda m: subjects.dead(m.service),
        pattern=subjects.DEAD,
        stored=True,
        senders=("every service",),
        listeners=("people",),
    ),
)

KIND: dict[type[msgspec.Struct], Kind] = {kind.type: kind for kind in CATALOGUE}
