"""What one decision has decided so far. The state is only read: its changes follow from the messages."""

from functools import cached_property
from typing import Required, TypedDict

from services.scheduler.book import ENDING, MS, State, Step
from services.scheduler.config import SchedulerConfig
from services.scheduler.fleet import refreshed
from services.scheduler.load import Fleet, Load, Room
from services.scheduler.narrow import narrowed
from services.scheduler.placement import Choice, least_finish, published
from services.scheduler.policies.reserve import blocks_needed, uncached_tokens
from services.scheduler.policies.retry import Verdict, verdict
from shared.contracts.envelope import Message
from shared.contracts.ids import ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import FinishReason, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.steps import StepClosed, StepDispatched, StepRevoked


class About(TypedDict, total=False):
    """The part of the envelope that says which step a message is about."""

    step: Required[StepId]
    workflow: WorkflowId
    tenant: TenantId
    trace: str


def _about(step: Step) -> About:
    return About(step=step.id, workflow=step.workflow, tenant=step.tenant, trace=step.trace)


class Plan:
    """Messages to publish, in order. Each step is decided on at most once per input; a second decision on it is ignored."""

    def __init__(self, state: State, now_ns: int, config: SchedulerConfig) -> None:
        self.state = state
        self.now_ns = now_ns
        self.config = config
        self.outputs: list[Message] = []
        self.touched: dict[StepId, None] = {}
        self.last: dict[ModelName, WorkerId] = {}  # who was given a step of each model last, by this decision

    @property
    def listening_since_ns(self) -> int:
        """Nobody is blamed for silence before this: it was the bus, or this process, that was silent."""
        return self.state.listening_since(self.config.lease_ms * MS // 2)

    @cached_property
    def fleet(self) -> Fleet:
        """Workers and their room: as they are, less what this decision has placed."""
        return refreshed(self.state, self.now_ns, self.config.lease_ms * MS, self._waiting_max)

    @property
    def _waiting_max(self) -> int:
        """Steps that may wait in an engine."""
        return self.config.worker_queue_max if self.config.queueing == "worker" else 0

    def room(self, model: ModelName) -> Room:
        """Of the workers of one model; an empty one where there are none."""
        return self.fleet.rooms.get(model) or Room()

    def verdict(self, step: Step) -> Verdict | None:
        return verdict(step, self.now_ns, self.config.attempts_max)

    def choose(self, step: Step, loads: list[Load], ready: int) -> Choice | None:
        """The worker for the step, or None: nobody has room. `loads`: those of the `ready` workers that have a free slot."""
        if self.config.placement == "least_finish":
            return least_finish(step, loads, ready, self.now_ns)
        model = step.job.model
        last = self.last.get(model) or self.state.last.get(model, WorkerId(""))
        return published(step, loads, ready, self.config, last)

    def choose_in(self, step: Step, room: Room) -> Choice | None:
        """Likewise, among all in a room. Other placements than the default look at each of them, and so does that where steps may wait in
        engines, whatever room they need."""
        few = self.config.placement == "least_finish" and not self._waiting_max
        loads = narrowed(step, room, self.now_ns) if few else room.listed()
        return self.choose(step, loads, room.ready)

    def sent(self, step: StepId) -> bool:
        """Whether the step is what was dispatched last."""
        return bool(self.outputs) and type(self.outputs[-1]) is StepDispatched and self.outputs[-1].step == step

    def dispatch(self, step: Step, choice: Choice, ready: int) -> None:
        """Place the step, and take its room off the load that the decision goes on with. Where it was to move to a worker that leaves, too,
        before it has gone on there, that one need not: it is still with the first."""
        self.touched[step.id] = None
        if step.worker and step.held:
            self._revoke(step, Reason.HANDED_OVER)
        load, cached, relieves = choice.load, choice.cached_tokens, step.held or step.worker
        self.last[step.job.model] = load.id
        self.outputs.append(
            StepDispatched(
                job=step.job,
                cell=self.state.cell,
                worker=load.id,
                attempt=step.attempt + 1,
                cached_tokens=cached,
                why=(f"takes over from {relieves}; " if relieves else "") + choice.why(ready, self.now_ns),
                relieves=relieves,
                **_about(step),
            )
        )
        self.fleet.take(load, blocks_needed(step.job, load.block_tokens, cached), uncached_tokens(step.job, cached), self.now_ns)

    def close(self, step: Step, end: Verdict) -> None:
        """End the step, for the fleet and for its reader; a worker that may still have it is told to stop.

        The number is above that of an attempt whose end is not known, so that nothing it still sends is taken for newer.
        """
        if step.id in self.touched:
            return
        self.touched[step.id] = None
        status, problem = end
        attempt = step.attempt + 1 if step.attempt and step.problem is None else step.attempt
        finish = FinishReason.CANCELLED if status is Status.CANCELLED else FinishReason.ERROR
        # The reader's end first: whoever records the closing looks there for what the reader has seen.
        self.outputs.append(Output(attempt=attempt, end=End(status=status, finish_reason=finish, problem=problem), **_about(step)))
        self.outputs.append(StepClosed(status=status, problem=problem, attempt=attempt, **_about(step)))
        if step.worker:
            self._revoke(step, Reason.SUPERSEDED)
        self._revoke_held(step, Reason.SUPERSEDED)

    def revoke(self, step: Step, reason: Reason) -> None:
        """Tell the worker that has the step to stop it; where the step is to end, also the one that it is to be taken over from."""
        if step.id not in self.touched:
            self.touched[step.id] = None
            self._revoke(step, reason)
            if reason in ENDING:
                self._revoke_held(step, reason)

    def lose(self, step: Step) -> None:
        """The placed attempt is lost: end the step, or void the attempt, which puts the step back."""
        end = self.verdict(step)
        if end is not None and not step.closed:
            self.close(step, end)
        else:
            self.revoke(step, Reason.SUPERSEDED)

    def void(self, step: StepId, worker: WorkerId, attempt: int) -> None:
        """A worker has an attempt that counts no more."""
        known = self.state.steps.get(step)
        self._tell(_about(known) if known else About(step=step), worker, attempt, Reason.SUPERSEDED)

    def _revoke(self, step: Step, reason: Reason) -> None:
        self._tell(_about(step), step.worker, step.attempt, reason)

    def _revoke_held(self, step: Step, reason: Reason) -> None:
        if step.held:
            self._tell(_about(step), step.held, step.held_attempt, reason)

    def _tell(self, about: About, worker: WorkerId, attempt: int, reason: Reason) -> None:
        self.outputs.append(StepRevoked(cell=self.state.cell, worker=worker, attempt=attempt, reason=reason, **about))
