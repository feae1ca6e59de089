"""Planted bugs: each is a way in which the code could be wrong, and some world must show it. They change the real code in this process, for
as long as `mutated` lasts."""

import asyncio
import random
from importlib import import_module
from typing import Any

import msgspec

from bench.sim import record
from bench.sim.planting import MUTATIONS, Patch, mutated, nothing, planted
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepClosed, StepState
from shared.contracts.streams import LEASES_BUCKET
from shared.core.machine import ENCODER
from shared.runtime.nats_client import read_headers

__all__ = ["MUTATIONS", "mutated"]

accounts = import_module("services.admission.accounts")
admission_decide = import_module("services.admission.decide")
admission_state = import_module("services.admission.state")
router_decide = import_module("services.router.decide")
book = import_module("services.scheduler.book")
enforce = import_module("services.scheduler.enforce")
placement = import_module("services.scheduler.placement")
plan = import_module("services.scheduler.plan")
scheduler_decide = import_module("services.scheduler.decide")
scheduler_state = import_module("services.scheduler.state")
attempt = import_module("services.worker.attempt")
captured = import_module("services.worker.captured")
writer = import_module("services.worker.writer")
announcer = import_module("services.workflow.announcer")
recorder = import_module("services.workflow.recorder")
workflow_decide = import_module("services.workflow.decide")
workflow_state = import_module("services.workflow.state")
journal = import_module("shared.drivers.journal")
live = import_module("shared.drivers.live")
sending = import_module("shared.drivers.sending")
lease = import_module("shared.runtime.lease")
output_reader = import_module("shared.runtime.output_reader")
publisher = import_module("shared.runtime.publisher")

# --- workers and their output ----------------------------------------------------------------------------------------------------


@planted("a worker stores its output whatever stands there: no fence")
def no_fence() -> list[Patch]:
    async def store(self: Any, message: Any) -> None:
        stored = await self._bus.store(self._subject, ENCODER.encode(message), msg_id=message.id)
        self.last_seq = (await stored).seq

    return [(writer.OutputWriter, "_store", store)]


@planted("a worker that is fenced reports success all the same")
def fenced_success() -> list[Patch]:
    run = writer.OutputWriter.run

    async def swallow(self: Any) -> None:
        try:
            await run(self)
        except writer.Fenced:
            self._failure = None

    return [(writer.OutputWriter, "run", swallow)]


@planted("a retry does not see the last token that is stored")
def resumes_early() -> list[Patch]:
    async def read(bus: Any, step: Any, known: Any = None) -> Any:
        found = await original(bus, step, known)
        del found.tokens[-1:]
        return found

    original = captured.read
    return [(captured, "read", read)]


@planted("a retry begins from the first token again")
def begins_again() -> list[Patch]:
    async def read(bus: Any, step: Any, known: Any = None) -> Any:
        found = await original(bus, step, known)
        return captured.Captured(last_seq=found.last_seq, attempt=found.attempt, end=found.end)

    original = captured.read
    return [(captured, "read", read)]


@planted("a retry goes on behind the end of the output")
def goes_on_behind_the_end() -> list[Patch]:
    async def read(bus: Any, step: Any, known: Any = None) -> Any:
        found = await original(bus, step, known)
        found.end = None
        del found.tokens[len(found.tokens) // 2 :]
        return found

    original = captured.read
    return [(captured, "read", read)]


@planted("what is handed over lacks a token")
def hands_over_too_little() -> list[Patch]:
    original = attempt._lacking

    def lacking(*given: Any) -> Any:
        handed = original(*given)
        return msgspec.structs.replace(handed, tokens=handed.tokens[:-1])

    return [(attempt, "_lacking", lacking)]


@planted("tokens are dropped between two messages of an output")
def drops_tokens() -> list[Patch]:
    original = writer.OutputWriter._take

    def take(self: Any, end: Any) -> Any:
        message = original(self, end)
        return msgspec.structs.replace(message, tokens=message.tokens[:-1]) if len(message.tokens) > 1 else message

    return [(writer.OutputWriter, "_take", take)]


@planted("another attempt samples with another seed")
def forgets_the_seed() -> list[Patch]:
    original = attempt.EngineRequest

    def request(**about: Any) -> Any:
        sampling = about["sampling"]
        if about["attempt"] > 1:
            sampling = msgspec.structs.replace(sampling, seed=(sampling.seed or 0) + about["attempt"])
        return original(**about | {"sampling": sampling})

    return [(attempt, "EngineRequest", request)]


@planted("a reader takes what comes live and does not see that something is missing before it")
def ignores_gaps() -> list[Patch]:
    return [(output_reader, "_place", lambda headers: (0, int(read_headers(headers)["Nats-Sequence"])))]


@planted("what JetStream did not acknowledge is not sent again")
def never_sends_again() -> list[Patch]:
    async def nothing(self: Any) -> None:
        return None

    return [(publisher.Publisher, "_send_again", nothing)]


# --- the record --------------------------------------------------------------------------------------------------------------------


@planted("whoever takes the record over reads the log from its beginning, and settles what was settled")
def settles_again() -> list[Patch]:
    def settle(self: Any, step: Any, settlement: Any, now_ns: int) -> bool:
        self.steps[step].status = StepState.RUNNING
        return bool(original(self, step, settlement, now_ns))

    async def take_over(self: Any, stream: str, created: str) -> Any:
        return msgspec.structs.replace(await taking(self, stream, created), seq=0)

    original, taking = record.Tables._settle, record.SimulatedStore.take_over
    opened = property(lambda self: True)
    return [(record.Tables, "_settle", settle), (record.SimulatedStore, "take_over", take_over), (workflow_state.Known, "open", opened)]


@planted("an attempt that failed settles its step")
def failure_settles() -> list[Patch]:
    def end(self: Any, row: Any, event: Any) -> None:
        if event.status is Status.FAILED:
            event = msgspec.structs.replace(event, status=Status.CANCELLED)
        original(self, row, event)

    original = workflow_decide._Batch._end
    return [(workflow_decide._Batch, "_end", end)]


@planted("a closing is recorded as it is said, whatever the step's reader has seen")
def no_judge() -> list[Patch]:
    async def judged(bus: Any, closing: StepClosed) -> StepClosed:
        return closing

    return [(recorder, "judged", judged)]


@planted("closings are not recorded")
def forgets_closings() -> list[Patch]:
    return [(workflow_decide._Batch, "_close", nothing)]


@planted("an outcome is announced however often it was announced before")
def announces_again() -> list[Patch]:
    async def send(self: Any, message: Any) -> Any:
        return await self._bus.store(announcer._SUBJECT(message), ENCODER.encode(message), trace=message.trace)

    async def twice(self: Any, steps: Any) -> None:
        await original(self, steps)
        await original(self, steps[:1])

    original = announcer.Announcer.announce
    return [(announcer.Announcer, "_send", send), (announcer.Announcer, "announce", twice)]


@planted("what was settled is not announced when the process died before it could")
def forgets_to_announce() -> list[Patch]:
    original = record.SimulatedStore.take_over

    async def take_over(self: Any, stream: str, created: str) -> Any:
        return msgspec.structs.replace(await original(self, stream, created), unannounced=[])

    return [(record.SimulatedStore, "take_over", take_over)]


# --- admission -------------------------------------------------------------------------------------------------------------------


@planted("a reservation counts twice")
def reserves_twice() -> list[Patch]:
    def reserve(held: Any, event: Any, amount: int, now_ns: int) -> None:
        original(held, event, amount, now_ns)
        held.budgets[held.bills[event.step].account].reserved += amount

    original = accounts.reserve
    return [(accounts, "reserve", reserve)]


@planted("what a step reserved and did not need is never released")
def never_releases() -> list[Patch]:
    return [(accounts, "_release", nothing)]


@planted("a step that has ended still counts among its tenant's")
def never_frees() -> list[Patch]:
    def free(state: Any, step: Any) -> None:
        entry = state.in_flight.get(step)
        if entry is not None:
            state.in_flight[step] = msgspec.structs.replace(entry, ended=True)

    return [(admission_state, "_free", free)]


@planted("a settlement takes a step off its tenant's once more, though its end did so before")
def frees_twice() -> list[Patch]:
    def free(state: Any, step: Any) -> None:
        entry = state.in_flight.get(step)
        if entry is not None:
            state.in_flight[step] = msgspec.structs.replace(entry, ended=True)
            state.tenants[entry.tenant].running -= 1

    return [(admission_state, "_free", free)]


@planted("settled steps are not taken off what is under way")
def keeps_what_settled() -> list[Patch]:
    return [(admission_state, "_settled", nothing)]


@planted("a budget is not looked at")
def no_budget() -> list[Patch]:
    rules = tuple(rule for rule in admission_decide.RULES if "budget" not in rule.__module__)
    return [(admission_decide, "RULES", rules), (admission_decide.budget, "taken", nothing)]


# --- router and scheduler ----------------------------------------------------------------------------------------------------------


@planted("the router keeps the steps that it has routed")
def keeps_what_is_routed() -> list[Patch]:
    class Keeping(dict[Any, Any]):
        def pop(self, *_: Any) -> Any:
            return None

    original = router_decide.State

    def start(*given: Any, **about: Any) -> Any:
        state = original(*given, **about)
        state.waiting = Keeping()
        return state

    return [(router_decide, "State", start)]


@planted("a step that leaves a worker does not give its blocks back")
def keeps_blocks() -> list[Patch]:
    def take_out(state: Any, step: Any) -> None:
        step.blocks = 0
        original(state, step)

    original = book.take_out
    return [(book, "take_out", take_out), (scheduler_state, "take_out", take_out)]


@planted("a step's prefill counts twice when it is placed")
def counts_prefill_twice() -> list[Patch]:
    def place(state: Any, step: Any, worker: Any, *given: Any) -> None:
        original(state, step, worker, *given)
        worker.prefill_tokens += step.prefill_tokens

    original = book.place
    return [(scheduler_state, "place", place)]


@planted("steps that are over are not forgotten")
def keeps_what_is_over() -> list[Patch]:
    def finish(state: Any, step: Any, now_ns: int) -> None:
        book.take_out(state, step)
        book.enqueue(state, step)

    return [(book, "finish", finish), (scheduler_state, "finish", finish)]


@planted("a step may be tried for ever")
def tries_for_ever() -> list[Patch]:
    original = plan.verdict
    return [(plan, "verdict", lambda step, now_ns, attempts_max: original(step, now_ns, 1_000))]


@planted("a worker's lease never ends, and nobody asks after what was revoked")
def forgets_leases() -> list[Patch]:
    return [
        (enforce, "_lose_silent", nothing),
        (enforce, "_end_unanswered", nothing),
        (scheduler_state, "_FOLDS", {kind: fold for kind, fold in scheduler_state._FOLDS.items() if "Vanished" not in kind.__name__}),
    ]


@planted("the queue has no end")
def shedsnothing() -> list[Patch]:
    return [(scheduler_decide, "_shed_surplus", nothing)]


@planted("a placement looks at something besides its inputs")
def draws_lots() -> list[Patch]:
    original = placement.finish_s
    lots = random.Random(7)
    return [(placement, "finish_s", lambda *given: original(*given) + lots.random())]


# --- the drivers ---------------------------------------------------------------------------------------------------------------------


@planted("two processes may drive a partition, and write its journal side by side")
def everybody_drives() -> list[Patch]:
    async def try_it(self: Any) -> bool:
        bucket = await self._bus.js.key_value(LEASES_BUCKET)
        self.epoch = self.epoch or await bucket.update(f"{self._key}.{self._life}", self._value, last=0)
        return True

    async def store(self: Any, data: bytes, msg_id: str) -> None:
        self._last = self.seq = (await (await self._bus.store(self._subject, data, msg_id=msg_id))).seq

    async def keep(self: Any) -> None:
        await asyncio.Event().wait()

    return [(lease.Lease, "_try", try_it), (lease.Lease, "keep", keep), (journal.Writer, "_store", store)]


@planted("a process that takes over folds inputs, and not what was decided on them")
def forgets_decisions() -> list[Patch]:
    def fold(self: Any, state: Any, entry: Any) -> None:
        self.machine.apply(state, self.input(entry), entry.now_ns)

    return [(journal.Reader, "_fold", fold)]


@planted("an input counts as handled before it was decided")
def skips_an_input() -> list[Patch]:
    def advance(positions: dict[str, int], source: str) -> None:
        original(positions, source)
        if source:
            positions[source.rpartition(":")[0]] += 1

    original = journal.advance
    return [(journal, "advance", advance), (live, "advance", advance)]


@planted("what is decided twice is stored twice")
def stores_copies() -> list[Patch]:
    return [(sending, "message_id", lambda message: message.id)]
