"""Every subject, built and taken apart in one place."""

from shared.contracts.ids import CellId, ConversationId, StepId, WorkerId, WorkflowId

SUBMIT = "legato.submit.*"
CANCEL = "legato.cancel.*"
OUTBOX = "legato.outbox.*"
OUT = "legato.out.*"
PROMPT = "legato.prompt.*"
TURN = "legato.turn.*"
ADMITTED = "legato.step.*.admitted"
REFUSED = "legato.step.*.refused"
CLOSED = "legato.step.*.closed"
SETTLED = "legato.step.*.settled"
WORKERS = "legato.fleet.worker.*"
TARGETS = "legato.fleet.target.*.*"
BEATS = "legato.beat.*"
KV = "legato.kv.*"
QUEUES = "legato.queue.*"
STATUS = "legato.status"  # request: every process answers with its ProcessStatus
WORKFLOWS = "legato.workflow.>"
QUERY_WORKFLOW = "legato.query.workflow.*"  # request: a WorkflowRecord
QUERY_WORKFLOWS = "legato.query.workflows"  # request: a WorkflowList
QUERY_VALUE = "legato.query.value.*.*"  # request: a ValueFound
QUERY_COSTS = "legato.query.costs"  # request, its payload the Unix time in nanoseconds since when: a CostReport
QUERY_STEP = "legato.query.step.*"  # request: the workflow service answers with a StepRecord
DEAD = "legato.dead.*"


def submit(step: StepId) -> str:
    return f"legato.submit.{step}"


def cancel(step: StepId) -> str:
    return f"legato.cancel.{step}"


def outbox(step: StepId) -> str:
    """Where a step's output is published: what JetStream stores of it appears under `out`."""
    return f"legato.outbox.{step}"


def out(step: StepId) -> str:
    """A step's stored output, in the stream and for whoever listens."""
    return f"legato.out.{step}"


def prompt(step: StepId) -> str:
    return f"legato.prompt.{step}"


def turn(conversation: ConversationId) -> str:
    """Where the last part of a conversation is stored, by the id of the whole."""
    return f"legato.turn.{conversation}"


def step_event(step: StepId, event: str) -> str:
    """`event`: admitted, refused, routed.<cell>, dispatched.<worker>, revoked.<worker>, ended.<cell>, closed, settled."""
    return f"legato.step.{step}.{event}"


def step_history(step: StepId) -> str:
    """All events of one step."""
    return f"legato.step.{step}.>"


def routed_to(cell: CellId) -> str:
    return f"legato.step.*.routed.{cell}"


def ended_in(cell: CellId) -> str:
    return f"legato.step.*.ended.{cell}"


def dispatched_to(worker: WorkerId) -> str:
    return f"legato.step.*.dispatched.{worker}"


def revoked_from(worker: WorkerId) -> str:
    return f"legato.step.*.revoked.{worker}"


def handed_to(worker: WorkerId, step: StepId) -> str:
    """Where nats-server sends a step's stored prompt when the scheduler dispatches it."""
    return f"legato.handed.{worker}.{step}"


def worker(worker: WorkerId) -> str:
    return f"legato.fleet.worker.{worker}"


def beat(worker: WorkerId) -> str:
    return f"legato.beat.{worker}"


def kv(worker: WorkerId) -> str:
    return f"legato.kv.{worker}"


def kv_resync(worker: WorkerId) -> str:
    return f"legato.resync.{worker}"


def alive(worker: WorkerId) -> str:
    """On which a worker only listens: that somebody does is the answer (services/scheduler/prober.py)."""
    return f"legato.alive.{worker}"


def handover(worker: WorkerId) -> str:
    """Request: the worker that takes a step over asks the one that has it."""
    return f"legato.handover.{worker}"


def vanished(cell: CellId) -> str:
    return f"legato.vanished.{cell}"


def match(cell: CellId) -> str:
    return f"legato.match.{cell}"


def queue(cell: CellId) -> str:
    return f"legato.queue.{cell}"


def query_step(step: StepId) -> str:
    return f"legato.query.step.{step}"


def workflow_event(workflow: WorkflowId, event: str) -> str:
    """`event`: opened, budget, closed, value.<token of the name>."""
    return f"legato.workflow.{workflow}.{event}"


def query_workflow(workflow: WorkflowId) -> str:
    return f"legato.query.workflow.{workflow}"


def query_value(workflow: WorkflowId, token: str) -> str:
    return f"legato.query.value.{workflow}.{token}"


def target(cell: CellId, pool: str) -> str:
    return f"legato.fleet.target.{cell}.{pool}"


def journal(service: str, partition: str) -> str:
    return f"legato.journal.{service}.{partition}"


def dead(service: str) -> str:
    return f"legato.dead.{service}"


def stored_as(subject: str) -> str:
    """The subject under which a stream keeps what is published on this one."""
    place = OUTBOX.removesuffix("*")
    return OUT.removesuffix("*") + subject.removeprefix(place) if subject.startswith(place) else subject


def step_of(subject: str) -> StepId:
    """The step id in a submit, cancel, outbox, out, prompt or step subject (their third token)."""
    return StepId(subject.split(".", 3)[2])
