"""Postgres and the workflow service of a thought fleet: its real decider over rows in memory, a commit at a time.

What comes while a commit is under way, or while the database is away, goes into the next one. Re-drives and retention are not played: in
this world nothing is lost that they would bring back.
"""

from collections.abc import Callable

from legato.simulate.bus import Bus, Inbox
from services.workflow.config import WorkflowConfig
from services.workflow.decide import decide
from services.workflow.state import Known
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepSettled, StepState

BATCH_MAX = 500  # events of one commit


class Recorder(Inbox):
    """`open` are rows that are not settled; `settled`: told of each settlement."""

    def __init__(self, bus: Bus, commit_ms: float, settled: Callable[[StepSettled], None]) -> None:
        super().__init__(self._arrived)
        self.open: dict[StepId, Known] = {}
        self.admitted = 0
        self.settlements = 0
        self._bus = bus
        self._heap = bus.heap
        self._commit_s = commit_ms / 1e3
        self._settled = settled
        self._config = WorkflowConfig()
        self._events: list[Message] = []
        self._busy = False
        self._back_ns = 0  # the database is away until then
        bus.join(self, StepAdmitted | StepRefused | StepDispatched | AttemptEnded | StepClosed)

    def away(self, seconds: float) -> None:
        """Nothing is committed for so long."""
        self._back_ns = self._heap.now_ns + round(seconds * 1e9)

    def _arrived(self, event: Message) -> None:
        self._events.append(event)
        self._begin()

    def _begin(self) -> None:
        if self._events and not self._busy:
            self._busy = True
            self._heap.at(max(self._heap.now_ns, self._back_ns) + round(self._commit_s * 1e9), self._committed)

    def _committed(self, _: object) -> None:
        batch, self._events = self._events[:BATCH_MAX], self._events[BATCH_MAX:]
        known = {event.step: self.open[event.step] for event in batch if event.step in self.open}
        changes = decide(known, batch, self._heap.now_ns, self._config)
        for admission in changes.admitted:
            self.admitted += 1
            step = admission.message.step
            self.open[step] = changes.advanced.get(step) or Known(
                step=step, status=StepState.QUEUED, deadline_ns=admission.deadline_ns, check_ns=admission.check_ns
            )
        self.open.update(changes.advanced)
        for step, end in changes.settled.items():
            self.open.pop(step, None)
            self.settlements += 1
            told = StepSettled(step=step, status=end.status, attempt=end.attempt, usage=end.usage, problem=end.problem)
            self._bus.publish(told)
            self._settled(told)
        self._busy = False
        self._begin()
