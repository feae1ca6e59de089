"""The way of a step: submission, admission, routing, placement, attempts, settlement."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, ConversationId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage

Grammar = Annotated[str, Meta(min_length=1, max_length=32_768)]  # it travels with the step from message to message
MESSAGES_MAX = 10_000  # of a conversation
CONVERSATION = Meta(max_length=32, pattern="^([0-9a-f]{32})?$")  # and no line end behind it, which `$` allows
TOOLS_MAX = 128  # of a step, as OpenAI has it
GRAMMARS = ("json_schema", "regex", "ebnf")  # the fields of Sampling that hold one


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters, in OpenAI's names and ranges where it has them, else in SGLang's. At most one of `json_schema`, `regex`
    and `ebnf`: the output then is what they describe, and ends where they end, so that they exclude `min_tokens` and `ignore_eos`."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None  # None: up to the context length or the tenant's limit
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1  # -1 and 0: off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)] = []
    stop_token_ids: Annotated[list[int], Meta(max_length=64)] = []
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] = 1.0
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] = {}
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # None: none; k: the chosen token and the k likeliest
    ignore_eos: bool = False
    json_schema: Grammar | None = None  # the text of a JSON Schema
    regex: Grammar | None = None
    ebnf: Grammar | None = None  # as XGrammar reads it; its first rule is `root`


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a conversation, given to the model's chat template as it is."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # what the model thought; most templates leave out that of earlier turns


class ToolFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A function that the model may ask its reader to call. `parameters`: the JSON Schema of its arguments, an object."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$", max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """As OpenAI has it, given to the model's chat template as it is."""

    type: Literal["function"]
    function: ToolFunction


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a conversation, published to `legato.turn.<id>`. The id is that of the conversation up to its last message, and made of
    what it says (shared/core/conversation.py)."""

    after: Annotated[ConversationId, CONVERSATION] = ConversationId("")  # what was said before; empty: nothing
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a user publishes to `legato.submit.<step>`. Exactly one of `messages`, `history` and `prompt`.

    The step id is the last token of the subject. `key` is `sha256:<hex of the API key>`: the key itself never crosses the bus.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MESSAGES_MAX)] | None = None
    history: Annotated[ConversationId, CONVERSATION] = ConversationId("")  # of a stored conversation, in place of its messages
    prompt: str | Annotated[list[int], Meta(min_length=1)] | None = None
    tools: Annotated[list[Tool], Meta(min_length=1, max_length=TOOLS_MAX)] | None = None  # with messages only
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=16)] = {}  # what else the chat template is told, by name
    sampling: Sampling = Sampling()
    key: Annotated[str, Meta(max_length=128)] = ""
    workflow: Annotated[str, Meta(max_length=128)] = ""
    step_key: Annotated[str, Meta(max_length=256)] = ""  # the step's name within its workflow, for people
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0  # higher goes first
    timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None  # must have finished within; None: the fleet's default
    user: Annotated[str, Meta(max_length=256)] = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step asks of an engine, without its prompt: the prompt's tokens lie in PROMPTS under the step's id."""

    model: ModelName
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling = Sampling()
    priority: int = 0
    accepted_ns: int = 0
    deadline_ns: int = 0
    chat: bool = False


class SubmissionRead(Message, frozen=True, kw_only=True, tag="submission.read"):
    """A submission after parsing and tokenising: admission's recorded input. Never on the bus; `problem` says why it cannot be read."""

    key: str = ""
    model: str = ""
    prompt_tokens: int = 0
    context_tokens: int = 0  # of the model: prompt and output must fit
    sampling: Sampling = Sampling()
    priority: int = 0
    timeout_ms: int | None = None
    chat: bool = False
    step_key: str = ""
    input: str = ""  # fingerprint of what is asked, where the step is part of a workflow
    problem: Problem | None = None


class Prompt(Message, frozen=True, kw_only=True, tag="prompt"):
    """A step's tokens, stored once; workers fetch it by reference. `blocks`: chained hash of each full block (shared/core/blocks.py)."""

    model: ModelName
    tokens: list[int]
    block_tokens: int
    blocks: list[int]


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step takes from its tenant's limits until it is settled: tokens, and the refill time of both buckets
    (shared/core/limits.py); and from its workflow's budget."""

    tokens: int = 0  # prompt and longest output
    tokens_ns: int = 0
    request_ns: int = 0
    nano_usd: int | None = None  # None: there is no budget; 0: there is one, and nobody knows what the step may cost


class StepAdmitted(Message, frozen=True, kw_only=True, tag="step.admitted"):
    """The step may enter: its tenant is known, within its limits, and it can still meet its deadline."""

    job: Job
    reservation: Reservation | None = None  # None: nothing is reserved
    step_key: str = ""  # the step's name within its workflow
    input: str = ""  # fingerprint of what is asked (shared/core/inputs.py), where it is part of one


class StepRefused(Message, frozen=True, kw_only=True, tag="step.refused"):
    """The step may not enter."""

    problem: Problem


class StepRouted(Message, frozen=True, kw_only=True, tag="step.routed"):
    """The step goes to a cell, with its model resolved from alias to a served name."""

    job: Job
    cell: CellId


class StepDispatched(Message, frozen=True, kw_only=True, tag="step.dispatched"):
    """Attempt `attempt` of the step runs on `worker`. The attempt number fences: a higher one makes all lower ones void."""

    job: Job
    cell: CellId
    worker: WorkerId
    attempt: int
    cached_tokens: int = 0  # predicted
    why: str = ""  # the placement's reasons, for people
    relieves: WorkerId = WorkerId("")  # that has the step now, and hands it over when it is asked to; empty: nobody has it


class StepRevoked(Message, frozen=True, kw_only=True, tag="step.revoked"):
    """The worker must stop this attempt (cancelled, expired, superseded)."""

    cell: CellId
    worker: WorkerId
    attempt: int
    reason: Reason


class HandOverAsked(Message, frozen=True, kw_only=True, tag="handover.asked"):
    """The worker with the next attempt is ready to go on, and asks the one that has the step to stop. Answered with HandedOver."""

    attempt: int  # of the asker
    tokens: int = 0  # of the output, that the asker knows
    chars: int = 0  # of its text


class HandedOver(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the asker lacks. All of the output is stored, and nothing of this attempt will follow."""

    last_seq: int = 0  # of the output in OUT; 0: there is nothing to hand over, the asker must look what is stored
    tokens: list[int] = []
    text: str = ""


class CancelRequested(Message, frozen=True, kw_only=True, tag="step.cancel"):
    """The reader has gone or asks to stop. Published to `legato.cancel.<step>`; an empty body `{}` is enough there."""

    why: str = ""


class AttemptEnded(Message, frozen=True, kw_only=True, tag="attempt.ended"):
    """An attempt is over. `retryable` says whether another worker might do better."""

    cell: CellId
    worker: WorkerId
    attempt: int
    status: Status
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    tokens: list[int] = []
    text: str = ""
    problem: Problem | None = None
    retryable: bool = False
    queued_ms: float = 0.0  # in the worker, before the engine's first token was asked for
    ttft_ms: float = 0.0  # in the engine
    total_ms: float = 0.0
    resumed_tokens: int = 0  # output of earlier attempts that it went on from
    computed_tokens: int | None = None  # of prompt and resumed output, by its engine, warming included; None: not said
    gpu_s: float = 0.0  # its share of the engine's time, times the engine's GPUs (services/worker/meter.py)
    usd: float = 0.0  # of that time, by the worker's price


class StepClosed(Message, frozen=True, kw_only=True, tag="step.closed"):
    """The step ended without success, decided by the scheduler (or by the router, or by the workflow service when it re-drives)."""

    status: Status
    problem: Problem
    attempt: int = 0


class StepSettled(Message, frozen=True, kw_only=True, tag="step.settled"):
    """The step's outcome is recorded in Postgres; once for every accepted step."""

    status: Status
    attempt: int = 0
    usage: Usage = Usage()
    problem: Problem | None = None
    usd: float = 0.0  # of all its attempts, as recorded by then: those that reported, and by estimate those that were lost


class StepState(StrEnum):
    """How an accepted step stands. The open ones first; the others are the Status that it ended with."""

    QUEUED = "queued"  # accepted, not yet dispatched
    RUNNING = "running"  # dispatched at least once
    SUCCEEDED = "succeeded"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SHED = "shed"
    UNKNOWN = "unknown"  # there is no record; `problem` says why


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt as recorded. No `status`: it has not ended, or was lost; then, once its step is settled, what it cost is `estimated`
    (services/workflow/policies/estimate.py). `superseded`: it came too late to count."""

    attempt: int
    cell: CellId = CellId("")
    worker: WorkerId = WorkerId("")
    why: str = ""  # of the placement
    status: Status | None = None
    superseded: bool = False
    problem: Problem | None = None
    usage: Usage = Usage()
    dispatched_ns: int = 0
    ended_ns: int = 0
    queued_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    resumed_tokens: int = 0
    computed_tokens: int | None = None
    gpu_s: float = 0.0
    usd: float = 0.0
    estimated: bool = False


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Postgres has of a step: the answer on `legato.query.step.<step>`. `tokens` and `text` are there when a worker ended the step;
    of a step that was closed otherwise, the stream OUT may still have some. Times: Unix, nanoseconds, 0: not yet."""

    step: StepId
    status: StepState
    tenant: TenantId = TenantId("")
    workflow: WorkflowId = WorkflowId("")
    model: ModelName = ModelName("")
    trace: str = ""
    accepted_ns: int = 0
    deadline_ns: int = 0
    settled_ns: int = 0
    attempt: int = 0  # the one that the outcome came from, else the newest
    attempts: list[AttemptRecord] = []
    redrives: int = 0  # how often it was announced again because nothing was heard of it
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    tokens: list[int] = []
    text: str = ""
    problem: Problem | None = None
