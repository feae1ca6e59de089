"""What must always hold (the invariants of the plan, numbered as there), looked at while a simulated world runs. One class for each.

A checker is told of what is stored, heard, settled and decided, in the order in which it happens, and raises Violation. It sees all of the
world at once, as nobody in it does. What only the end can show is looked at by `finish`, once the world is healed and quiet.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepRevoked, StepSettled
from shared.contracts.streams import OUT, STEPS
from shared.core.errors import LegatoError
from shared.core.money import nano_usd
from shared.sim.streams import Stored

StepEvent = StepAdmitted | StepRefused | StepDispatched | StepRevoked | AttemptEnded | StepClosed | StepSettled
_STEP_EVENT: msgspec.json.Decoder[StepEvent] = msgspec.json.Decoder(StepEvent)
_OUTPUT = msgspec.json.Decoder(Output)


SLACK_NS = 1_000_000_000  # behind a worker's lease: whoever looks is woken, or hears something


class Violation(LegatoError):
    """An invariant does not hold."""


class Checker:
    """Sees nothing wrong. `now_s`: the world's clock."""

    invariant = 0

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s

    def fail(self, text: str) -> None:
        raise Violation(f"invariant {self.invariant}: {text}")

    def submitted(self, step: StepId, timeout_ms: int) -> None:
        """A reader is about to submit it."""

    def event(self, event: StepEvent) -> None:
        """The log of steps has one more."""

    def output(self, seq: int, output: Output) -> None:
        """A step's stored output has one more."""

    def heard(self, reader: str, step: StepId, output: Output) -> None:
        """A reader was given this. One that begins anew has another name."""

    def gave_up(self, reader: str, step: StepId) -> None:
        """A reader waited for an end as long as it may take."""

    def settled(self, step: StepId, row: Any) -> None:
        """The record has an outcome; `row` has status, tokens, settlements."""

    def decided(self, service: str, state: Any) -> None:
        """A machine has taken an input; its state now."""

    def finish(self, rows: dict[StepId, Any], states: dict[str, Any]) -> None:
        """The world is quiet. `rows`: the record; `states`: of the machines that drive, by service."""


class SettledOnce(Checker):
    """1. An accepted step settles exactly once, with a reason."""

    invariant = 1

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__(now_s)
        self._admitted: dict[StepId, None] = {}
        self._announced: dict[StepId, StepSettled] = {}
        self._ends: dict[StepId, Status] = {}
        self._submitted: dict[StepId, None] = {}

    def submitted(self, step: StepId, timeout_ms: int) -> None:
        self._submitted[step] = None

    def event(self, event: StepEvent) -> None:
        if isinstance(event, StepAdmitted):
            if event.step in self._admitted and ".redrive." not in event.id:
                self.fail(f"{event.step} is admitted a second time, by {event.id}")
            self._admitted[event.step] = None
        elif isinstance(event, StepSettled):
            if event.step in self._announced:
                self.fail(f"{event.step} is announced a second time, as {event.status}")
            self._announced[event.step] = event
            if event.status is not Status.SUCCEEDED and event.problem is None:
                self.fail(f"{event.step} is {event.status} without a reason")

    def output(self, seq: int, output: Output) -> None:
        if output.end is not None:
            self._ends.setdefault(output.step, output.end.status)

    def settled(self, step: StepId, row: Any) -> None:
        if row.settlements > 1:
            self.fail(f"{step} was settled {row.settlements} times")

    def finish(self, rows: dict[StepId, Any], states: dict[str, Any]) -> None:
        for step in self._admitted:
            if step not in rows or not rows[step].settlements:
                self.fail(f"{step} was accepted and never settled")
            if step not in self._announced:
                self.fail(f"{step} was settled and never announced")
            if self._announced[step].status != rows[step].status:
                self.fail(f"{step} is announced as {self._announced[step].status}, and recorded as {rows[step].status}")
            if self._ends.get(step) != rows[step].status:
                self.fail(f"{step} is recorded as {rows[step].status}, and its output ends as {self._ends.get(step)}")
        for step in self._ends:
            if step in self._submitted and step not in self._admitted and self._ends[step] is not Status.REFUSED:
                self.fail(f"{step} ended as {self._ends[step]} without having been accepted")


class PrefixOnly(Checker):
    """2. What any reader got is a prefix of the recorded result; offsets never repeat and never skip."""

    invariant = 2

    def __init__(self, now_s: Callable[[], float], truth: Callable[[StepAdmitted, int], list[int]]) -> None:
        """`truth`: what the engine says for a step, so many tokens of it."""
        super().__init__(now_s)
        self._truth = truth
        self._admitted: dict[StepId, StepAdmitted] = {}
        self._stored: dict[StepId, list[int]] = {}
        self._ended: dict[StepId, bool] = {}
        self._heard: dict[tuple[str, StepId], list[int]] = {}

    def event(self, event: StepEvent) -> None:
        if isinstance(event, StepAdmitted):
            self._admitted.setdefault(event.step, event)

    def output(self, seq: int, output: Output) -> None:
        if self._ended.get(output.step):
            if output.tokens:
                self.fail(f"{output.step} has tokens behind its end: {output}")
            return
        said = self._stored.setdefault(output.step, [])
        if output.tokens and output.offset != len(said):
            self.fail(f"{output.step} has {len(said)} tokens stored, and the next ones begin at {output.offset}")
        said += output.tokens
        self._ended[output.step] = output.end is not None
        if output.tokens and said != self._truth(self._admitted[output.step], len(said)):
            self.fail(f"{output.step} says what its engine does not say, by token {len(said)}")
        if output.end is not None and output.end.status is Status.SUCCEEDED and output.end.usage.output_tokens != len(said):
            self.fail(f"{output.step} counts {output.end.usage.output_tokens} tokens of output, and has {len(said)}")

    def heard(self, reader: str, step: StepId, output: Output) -> None:
        said = self._heard.setdefault((reader, step), [])
        if output.offset != len(said):
            self.fail(f"{reader} has {len(said)} tokens of {step}, and is given the next ones from {output.offset}")
        said += output.tokens
        if said != self._stored.get(step, [])[: len(said)]:
            self.fail(f"{reader} heard of {step} what is not stored")

    def settled(self, step: StepId, row: Any) -> None:
        if row.status == Status.SUCCEEDED and row.tokens != self._stored.get(step, []):
            self.fail(f"{step} is recorded with {len(row.tokens)} tokens, and its output has {len(self._stored.get(step, []))}")


class OneWriter(Checker):
    """3. At no time do two attempts' outputs both reach a reader."""

    invariant = 3

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__(now_s)
        self._newest: dict[tuple[str, StepId], int] = {}
        self._ended: dict[StepId, None] = {}

    def output(self, seq: int, output: Output) -> None:
        if output.step not in self._ended and output.tokens:
            self._follow("the record", output.step, output)
        if output.end is not None:
            self._ended[output.step] = None

    def heard(self, reader: str, step: StepId, output: Output) -> None:
        if output.tokens:
            self._follow(reader, step, output)

    def _follow(self, reader: str, step: StepId, output: Output) -> None:
        newest = self._newest.get((reader, step), 0)
        if output.attempt < newest:
            self.fail(f"{reader} was given output of attempt {output.attempt} of {step} after that of attempt {newest}")
        self._newest[reader, step] = output.attempt


class WithinBudget(Checker):
    """4. Spend never exceeds a budget by more than the reservations that were granted; money reserved is settled or released."""

    invariant = 4

    def __init__(self, now_s: Callable[[], float], budgets: dict[str, float]) -> None:
        """`budgets`: dollars by workflow."""
        super().__init__(now_s)
        self._limits = {workflow: nano_usd(usd) for workflow, usd in budgets.items()}
        self._reserved: dict[StepId, tuple[str, int]] = {}
        self._costs: dict[tuple[StepId, int], int] = {}

    def event(self, event: StepEvent) -> None:
        if isinstance(event, StepAdmitted) and event.reservation is not None and event.reservation.nano_usd is not None:
            self._reserved.setdefault(event.step, (event.workflow, event.reservation.nano_usd))
        elif isinstance(event, AttemptEnded):
            self._costs.setdefault((event.step, event.attempt), nano_usd(event.usd))

    def decided(self, service: str, state: Any) -> None:
        if service != "admission":
            return
        accounts = state.accounts
        for name, budget in accounts.budgets.items():
            open_bills = [bill for bill in accounts.bills.values() if bill.account == name]
            if budget.reserved != sum(bill.left for bill in open_bills) or budget.steps != len(open_bills):
                self.fail(f"{name} has {budget.reserved} reserved, its open bills {[bill.left for bill in open_bills]}")
            if budget.reserved < 0 or budget.spent < 0 or any(bill.left < 0 for bill in open_bills):
                self.fail(f"{name} has less than nothing: {budget}")

    def finish(self, rows: dict[StepId, Any], states: dict[str, Any]) -> None:
        for workflow, limit in self._limits.items():
            granted = sum(self._within(step) for step, (owner, _) in self._reserved.items() if owner == workflow)
            if granted > limit:
                self.fail(f"the steps of {workflow} cost {granted} within what they had reserved; its budget is {limit}")
        admission = states.get("admission")
        if admission is not None:
            for name, budget in admission.accounts.budgets.items():
                if budget.reserved or budget.steps:
                    self.fail(f"{name} still has {budget.reserved} reserved for {budget.steps} steps, and nothing runs")

    def _within(self, step: StepId) -> int:
        """What a step cost, as far as it had reserved that."""
        cost = sum(cost for (of, _), cost in self._costs.items() if of == step)
        return min(cost, self._reserved[step][1])


class NothingWaits(Checker):
    """5. A lease that is not renewed ends; nothing waits for ever."""

    invariant = 5

    def __init__(self, now_s: Callable[[], float], lease_ns: int) -> None:
        """`lease_ns`: of a worker."""
        super().__init__(now_s)
        self._lease_ns = lease_ns

    def decided(self, service: str, state: Any) -> None:
        """A worker that nobody has heard for longer than its lease has nothing, while others are heard."""
        if service != "scheduler" or state.now_ns != state.heard_ns:
            return
        since_ns = state.listening_since(self._lease_ns // 2)
        for name, heard_ns in state.heard.items():
            worker = state.workers[name]
            silent_ns = state.now_ns - max(heard_ns, since_ns)
            if silent_ns > self._lease_ns + SLACK_NS and any(not state.steps[step].closed for step in worker.placed):
                self.fail(f"{name} was not heard for {silent_ns / 1e9:.1f} s, and still has {worker.placed}")

    def gave_up(self, reader: str, step: StepId) -> None:
        self.fail(f"{reader} waited for {step} until {self.now_s():.1f} s, and nobody ended it")

    def finish(self, rows: dict[StepId, Any], states: dict[str, Any]) -> None:
        waiting = {
            "scheduler": ("steps", "queues", "placed", "awaiting", "revoked"),
            "admission": ("held", "in_flight"),
            "router": ("waiting",),
        }
        for service, tables in waiting.items():
            for table in tables:
                held = getattr(states.get(service), table, None)
                if held:
                    self.fail(f"{service} still has {table}: {str(held)[:400]}")
        for worker in states["scheduler"].workers.values() if "scheduler" in states else ():
            if worker.strangers or worker.foreign_slots:
                self.fail(f"{worker.id} still has {worker.strangers}, in {worker.foreign_slots} slots")


class FewRetries(Checker):
    """6. Retries stay within what is allowed: attempts of a step, and how often it is announced again."""

    invariant = 6

    def __init__(self, now_s: Callable[[], float], attempts_max: int, redrives_max: int) -> None:
        super().__init__(now_s)
        self._attempts_max = attempts_max
        self._redrives_max = redrives_max
        self._attempts: dict[StepId, dict[int, None]] = {}
        self._moved: dict[StepId, dict[int, None]] = {}
        self._redrives: dict[StepId, int] = {}
        self._closed: dict[StepId, int] = {}

    def event(self, event: StepEvent) -> None:
        if isinstance(event, StepDispatched):
            attempts = self._attempts.setdefault(event.step, {})
            if event.attempt in attempts:
                self.fail(f"attempt {event.attempt} of {event.step} is dispatched a second time")
            attempts[event.attempt] = None
            if event.relieves:
                self._moved.setdefault(event.step, {})[event.attempt] = None
            failures = len(attempts) - len(self._moved.get(event.step, ()))
            if failures > self._attempts_max:
                self.fail(f"{event.step} has {len(attempts)} attempts, {len(self._moved.get(event.step, ()))} of them moves")
        elif isinstance(event, StepRevoked) and event.reason in (Reason.PREEMPTED, Reason.HANDED_OVER):
            self._moved.setdefault(event.step, {})[event.attempt + 1] = None
        elif isinstance(event, StepAdmitted) and ".redrive." in event.id:
            redrives = self._redrives[event.step] = self._redrives.get(event.step, 0) + 1
            if redrives > self._redrives_max:
                self.fail(f"{event.step} was announced {redrives} times again")


class NeverNegative(Checker):
    """7. Counters never go negative, and are what they count."""

    invariant = 7

    def decided(self, service: str, state: Any) -> None:
        if service == "scheduler":
            self._scheduler(state)
        elif service == "admission":
            self._admission(state)

    def _scheduler(self, state: Any) -> None:
        for worker in state.workers.values():
            placed = [state.steps[step] for step in worker.placed]
            sums = (sum(step.blocks for step in placed), sum(step.prefill_tokens for step in placed))
            if (worker.reserved_blocks, worker.prefill_tokens) != sums:
                self.fail(f"{worker.id} counts {worker.reserved_blocks} blocks, {worker.prefill_tokens} tokens of prefill; placed: {sums}")
            if min(worker.reserved_blocks, worker.prefill_tokens, worker.foreign_blocks, worker.foreign_slots) < 0:
                self.fail(f"{worker.id} counts less than nothing: {worker}")
            if any(step.worker != worker.id for step in placed):
                self.fail(f"{worker.id} has what is elsewhere: {worker.placed}")
        if (
            sum(state.placed.values()) != sum(len(worker.placed) for worker in state.workers.values())
            or min(state.placed.values(), default=1) < 1
        ):
            self.fail(f"placed by priority: {state.placed}")
        queued = sum(step.queued for step in state.steps.values())
        if queued != sum(len(queue.keys) for queue in state.queues.values()):
            self.fail(f"{queued} steps are queued, the queues have {[len(queue.keys) for queue in state.queues.values()]}")

    def _admission(self, state: Any) -> None:
        running: dict[str, int] = {}
        for entry in state.in_flight.values():
            running[entry.tenant] = running.get(entry.tenant, 0) + (not entry.ended)
        for tenant, use in state.tenants.items():
            if use.running != running.get(tenant, 0):
                self.fail(f"{tenant} counts {use.running} running steps; there are {running.get(tenant, 0)}")


class Bounded(Checker):
    """9. Memory is bounded by configuration, not by traffic."""

    invariant = 9

    def __init__(self, now_s: Callable[[], float], limits: dict[str, dict[str, int]]) -> None:
        """`limits`: of tables, by service."""
        super().__init__(now_s)
        self._limits = limits

    def decided(self, service: str, state: Any) -> None:
        for table, most in self._limits.get(service, {}).items():
            if len(getattr(state, table)) > most:
                self.fail(f"{service} has {len(getattr(state, table))} {table}; {most} are allowed")
        most = self._limits["tenants"]["running"]
        if service == "admission" and most and any(use.running > most for use in state.tenants.values()):
            self.fail(f"more than {most} steps run at once: {state.tenants}")
        if service == "scheduler":
            most = self._limits["scheduler_queue"]["new"]
            new = sum(step.queued and step.attempt == 0 for step in state.steps.values())
            if new > most:
                self.fail(f"{new} steps wait that never ran; {most} are allowed")


class Watch:
    """All checkers, and what they are told."""

    def __init__(self, checkers: list[Checker]) -> None:
        self.checkers = checkers
        self.admitted: dict[StepId, None] = {}

    def stored(self, stream: str, message: Stored) -> None:
        """The server has one more message."""
        if stream == OUT.name:
            output = _OUTPUT.decode(message.data)
            for checker in self.checkers:
                checker.output(message.seq, output)
        elif stream == STEPS.name and message.subject.startswith("legato.step."):
            event = _STEP_EVENT.decode(message.data) if b"step.routed" not in message.data[:40] else None
            if isinstance(event, StepAdmitted):
                self.admitted[event.step] = None
            if event is not None:
                for checker in self.checkers:
                    checker.event(event)
