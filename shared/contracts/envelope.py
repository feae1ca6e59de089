"""The envelope that every message carries. JSON on the wire, so that `nats sub` reads it."""

import msgspec

from shared.contracts.ids import MessageId, StepId, TenantId, WorkflowId


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages: who it is about, what caused it, when it was decided.

    `id` is also the `Nats-Msg-Id`. The driver fills `id`, `cause` and `time_ns` of what a machine decides:
    `<service>.<partition>.<epoch>.<input number>.<index>`. `trace` is a W3C traceparent, repeated in the NATS header of the same name.
    Receivers inside the fleet ignore fields that they do not know, so that services can be upgraded one by one.
    """

    id: MessageId = MessageId("")
    step: StepId = StepId("")
    workflow: WorkflowId = WorkflowId("")
    tenant: TenantId = TenantId("")
    cause: MessageId = MessageId("")
    time_ns: int = 0  # Unix time, nanoseconds
    trace: str = ""


class Tick(Message, frozen=True, kw_only=True, tag="tick"):
    """Time has passed. An input of every machine, recorded like any other; never on the bus."""
