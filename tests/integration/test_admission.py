"""The admission as a process of its own on a real nats-server: what goes in by the wire, and what comes out."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from services.admission.decide import MACHINE
from services.worker.engines import byte_tokenizer
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, Hardware, ModelCard, QueueReported, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.journal import DeadLetter
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, Prompt, StepAdmitted, StepClosed, StepRefused, StepSettled
from shared.contracts.streams import DEAD, JOURNAL, MODELS_BUCKET, OUT, PROMPTS, STEPS
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core.blocks import block_hashes
from shared.core.machine import ENCODER
from shared.drivers.replay import Replay
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Record, Source
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.process import ManagedProcess, ProcessSpec
from tests.journalled import journalled

LIMIT_S = 30.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = "sha256:" + hashlib.sha256(b"secret").hexdigest()
TENANTS = f'admission.tenants={{"acme":{{"keys":["{KEY}"],"requests_per_minute":2}}}}'
T = TypeVar("T")


class Rig:
    """One admission process, and the bus on which the test plays everybody else."""

    def __init__(self, bus: Bus, directory: Path) -> None:
        self.bus = bus
        self._directory = directory
        self._argv: list[str] = []
        self.process: ManagedProcess | None = None

    async def start(self, *settings: str) -> None:
        pairs = [f"bus.url={self.bus.config.url}", "models.aliases.fast=bytes", *settings]
        argv = [sys.executable, "-m", "services.admission", "--instance", "admission-test"]
        argv += [word for pair in pairs for word in ("--set", pair)]
        self.process = ManagedProcess(ProcessSpec(name="admission", argv=argv, log=self._directory / "admission.log"))
        await self.process.start()

    async def kill_when_journalled(self, step: StepId) -> None:
        assert self.process is not None
        await journalled(self.bus, "admission", "main", step)
        await self.process.stop(0)

    async def register(self, worker: str = "w", model: str = "bytes", usd_per_hour: float = 0.0) -> None:
        content = byte_tokenizer.build()
        name = hashlib.sha256(content).hexdigest()
        await self.bus.put_object(MODELS_BUCKET, name, content)
        card = ModelCard(
            name=ModelName(model),
            tokenizer=name,
            chat_template=byte_tokenizer.CHAT_TEMPLATE,
            vocab_size=byte_tokenizer.VOCAB_SIZE,
            context_tokens=1_000,
            block_tokens=4,
        )
        registered = WorkerRegistered(
            worker=WorkerId(worker),
            cell=CellId("local"),
            pool="p",
            epoch=1,
            state=WorkerState.READY,
            card=card,
            hardware=Hardware(usd_per_hour=usd_per_hour),
            capacity=Capacity(blocks=100, slots=4, decode_tokens_per_s=10),
        )
        await (await self.bus.store(subjects.worker(registered.worker), ENCODER.encode(registered)))

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await (await self.bus.store(KIND[type(message)].subject(message), ENCODER.encode(message)))

    async def submit(self, *, step: str = "", body: bytes | None = None, **fields: object) -> StepId:
        name = StepId(step or new_id())
        values = {"model": "bytes", "prompt": "What do violins do all night?", "sampling": {"max_tokens": 20}, **fields}
        data = msgspec.json.encode(values) if body is None else body
        await (await self.bus.store(subjects.submit(name), data, trace=TRACE))
        return name

    async def admitted(self, step: StepId) -> StepAdmitted:
        return await self.first(STEPS.name, subjects.step_event(step, "admitted"), StepAdmitted)

    async def refused(self, step: StepId) -> Problem:
        """The refusal, as the fleet and the submission's reader see it."""
        message = await self.first(STEPS.name, subjects.step_event(step, "refused"), StepRefused)
        output = await self.first(OUT.name, subjects.out(step), Output)
        assert output.end is not None
        assert (output.end.status, output.end.problem) == (Status.REFUSED, message.problem)
        return message.problem

    async def answer(self, step: StepId) -> StepAdmitted | StepRefused:
        """Whatever is decided on the step first."""
        record = await self.record(STEPS.name, subjects.step_history(step))
        return msgspec.json.decode(record.data, type=StepAdmitted | StepRefused)

    async def first(self, stream: str, subject: str, kind: type[T]) -> T:
        return msgspec.json.decode((await self.record(stream, subject)).data, type=kind)

    async def record(self, stream: str, subject: str) -> Record:
        cursor = await self.bus.read(Source(stream=stream, subjects=(subject,)))
        try:
            [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
            return record
        except TimeoutError as error:
            assert self.process is not None
            raise AssertionError(f"nothing on {subject}; {self.process.end()}") from error
        finally:
            await cursor.close()


@pytest.fixture
async def rig(fresh_nats: EmbeddedNats, server_directory: Path) -> AsyncIterator[Rig]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    rig = Rig(bus, server_directory)
    yield rig
    if rig.process is not None:
        await rig.process.stop()
    await bus.close()


async def test_a_submission_is_admitted_with_its_prompt_tokenised_and_its_trace_kept(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    step = await rig.submit(workflow="w1")
    admitted = await rig.admitted(step)
    prompt = await rig.first(PROMPTS.name, subjects.prompt(step), Prompt)
    tokens = list(b"What do violins do all night?")
    assert (prompt.tokens, prompt.blocks) == (tokens, block_hashes(tokens, 4))
    assert (admitted.tenant, admitted.workflow, admitted.trace) == ("default", "w1", TRACE)
    assert (admitted.job.model, admitted.job.prompt_tokens, admitted.job.max_tokens) == ("bytes", len(tokens), 20)
    assert admitted.job.sampling.seed is not None
    assert (await rig.record(STEPS.name, subjects.step_event(step, "admitted"))).headers["traceparent"] == TRACE


async def test_an_alias_and_a_conversation_and_a_long_prompt_are_tokenised_for_the_model(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    chat = await rig.submit(body=b'{"model":"fast","messages":[{"role":"user","content":"Hi"}]}')
    long = await rig.submit(prompt=list(range(256)) * 3)
    assert (await rig.admitted(chat)).job.model == "bytes"
    assert 257 in (await rig.first(PROMPTS.name, subjects.prompt(chat), Prompt)).tokens
    await rig.admitted(long)
    assert (await rig.first(PROMPTS.name, subjects.prompt(long), Prompt)).tokens == list(range(256)) * 3


async def test_what_is_wrong_with_a_submission_is_seen_by_its_reader(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    cases = {
        Reason.INVALID: await rig.submit(body=b"\xff{"),
        Reason.MODEL_NOT_FOUND: await rig.submit(model="cello"),
        Reason.CONTEXT_TOO_LONG: await rig.submit(prompt="x" * 5_000),
        Reason.TOO_LARGE: await rig.submit(prompt="x" * 2_000_001),
    }
    unknown = await rig.submit(sampling={"n": 2})
    for reason, step in cases.items():
        assert (await rig.refused(step)).reason is reason
    problem = await rig.refused(unknown)
    assert (problem.reason, problem.param) == (Reason.INVALID, "sampling.n")
    await rig.admitted(await rig.submit())


async def test_a_subject_that_is_no_step_id_is_parked_and_its_reader_told(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    await rig.submit(step="no.such.pattern".replace(".", "$"))
    letter = await rig.first(DEAD.name, subjects.dead("admission"), DeadLetter)
    assert letter.subject == "legato.submit.no$such$pattern"
    output = await rig.first(OUT.name, "legato.out.no$such$pattern", Output)
    assert output.end is not None
    assert output.end.status is Status.REFUSED
    await rig.admitted(await rig.submit())


async def test_a_model_that_appears_later_is_served_without_a_restart(rig: Rig) -> None:
    await rig.start()
    assert (await rig.refused(await rig.submit())).reason is Reason.MODEL_NOT_FOUND
    await rig.register()
    async with asyncio.timeout(LIMIT_S):
        while not isinstance(await rig.answer(await rig.submit()), StepAdmitted):
            pass


async def test_a_deadline_that_the_queue_makes_unreachable_is_refused(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    report = QueueReported(
        cell=CellId("local"), model=ModelName("bytes"), depth=9, waiting_tokens=9, running=4, slots=4, workers=1, drain_ms=60_000
    )
    async with asyncio.timeout(LIMIT_S):
        answer = None
        while not isinstance(answer, StepRefused):  # it may not listen to reports yet
            await rig.bus.publish(subjects.queue(report.cell), ENCODER.encode(report))
            answer = await rig.answer(await rig.submit(timeout_ms=10_000))
    assert answer.problem.reason is Reason.DEADLINE_UNREACHABLE
    assert answer.problem.retry_after_ms > 0


async def test_keys_and_limits_hold_through_sigkill_and_restart(rig: Rig) -> None:
    await rig.register()
    await rig.start(TENANTS)
    assert (await rig.refused(await rig.submit())).reason is Reason.UNAUTHENTICATED
    steps = [await rig.submit(key=KEY) for _ in range(2)]
    for step in steps:
        assert (await rig.admitted(step)).tenant == "acme"
    await rig.kill_when_journalled(steps[-1])
    waiting = await rig.submit(key=KEY)  # while nobody is there
    await rig.start(TENANTS)
    problem = await rig.refused(waiting)
    assert problem.reason is Reason.RATE_LIMITED
    assert 0 < problem.retry_after_ms <= 60_000


async def test_a_settled_step_makes_room_for_the_next_also_after_a_restart(rig: Rig) -> None:
    settings = ("admission.anyone.concurrent_max=1", "admission.anyone.tokens_per_minute=100")
    await rig.register()
    await rig.start(*settings)
    first = await rig.submit()
    await rig.admitted(first)
    second = await rig.submit()
    assert (await rig.refused(second)).reason is Reason.RATE_LIMITED
    await rig.kill_when_journalled(second)
    settled = StepSettled(step=first, status=Status.SUCCEEDED, usage=Usage(prompt_tokens=29, output_tokens=1))
    await (await rig.bus.store(subjects.step_event(first, "settled"), ENCODER.encode(settled)))
    await rig.start(*settings)
    await rig.admitted(await rig.submit())


async def test_a_step_that_has_ended_makes_room_for_the_next_and_its_output_stays_out_of_the_journal(rig: Rig) -> None:
    await rig.register()
    await rig.start(TENANTS.replace('"requests_per_minute":2', '"concurrent_max":1'))
    first = await rig.submit(key=KEY)
    await rig.admitted(first)
    ended = AttemptEnded(step=first, cell=CellId("local"), worker=WorkerId("w"), attempt=1, status=Status.SUCCEEDED, text="all night")
    await (await rig.bus.store(subjects.step_event(first, "ended.local"), ENCODER.encode(ended)))
    second = await rig.submit(key=KEY)
    await rig.admitted(second)
    assert (await rig.refused(await rig.submit(key=KEY))).reason is Reason.RATE_LIMITED
    closed = StepClosed(step=second, status=Status.SHED, problem=Problem(reason=Reason.NO_CAPACITY, message="no worker"))
    await (await rig.bus.store(subjects.step_event(second, "closed"), ENCODER.encode(closed)))
    await rig.admitted(await rig.submit(key=KEY))
    assert rig.process is not None
    assert await rig.process.stop() == 0
    journal = [record.data async for record in rig.bus.history(JOURNAL.name, subjects.journal("admission", "main"))]
    assert any(b"attempt.ended" in data for data in journal)
    assert not any(b"all night" in data for data in journal)
    assert (await Replay(rig.bus, MACHINE, "main").verify()).differing == 0


async def test_a_step_that_is_held_goes_out_with_its_prompt_when_a_place_gets_free(rig: Rig) -> None:
    await rig.register()
    await rig.start(TENANTS.replace('"requests_per_minute":2', '"concurrent_max":1'), "admission.concurrent_wait_ms=10000")
    first = await rig.submit(key=KEY)
    await rig.admitted(first)
    second = await rig.submit(key=KEY, prompt="Sing.")
    assert (await rig.refused(await rig.submit(key=KEY))).reason is Reason.RATE_LIMITED, "nobody else is held, and the second one is"
    ended = AttemptEnded(step=first, cell=CellId("local"), worker=WorkerId("w"), attempt=1, status=Status.SUCCEEDED)
    await (await rig.bus.store(subjects.step_event(first, "ended.local"), ENCODER.encode(ended)))
    await rig.admitted(second)
    assert (await rig.first(PROMPTS.name, subjects.prompt(second), Prompt)).tokens == list(b"Sing.")


async def test_steps_side_by_side_cannot_overrun_their_workflows_budget_also_after_a_restart(rig: Rig) -> None:
    workflow = WorkflowId("report")  # a dollar a second, so that each of its steps may cost (20 / 10) * 1.5 = 3 dollars
    await rig.register(usd_per_hour=3_600.0)
    await rig.start()
    await rig.say(WorkflowOpened(workflow=workflow, budget_usd=10.0))
    steps = await asyncio.gather(*(rig.submit(workflow=workflow) for _ in range(12)))
    answers = [await rig.answer(step) for step in steps]
    admitted = [answer.step for answer in answers if isinstance(answer, StepAdmitted)]
    problems = [answer.problem for answer in answers if isinstance(answer, StepRefused)]
    assert (len(admitted), len(problems)) == (3, 9)
    assert {problem.reason for problem in problems} == {Reason.BUDGET_SPENT}
    assert "9.0000 reserved" in problems[0].message
    first, second, third = admitted
    await rig.say(report(first, 1.0), report(first, 1.0), StepSettled(step=second, status=Status.FAILED, usd=2.0))
    await rig.admitted(fourth := await rig.submit(workflow=workflow))  # 3 spent, 3 reserved, 3 for it
    await rig.kill_when_journalled(fourth)
    waiting = await rig.submit(workflow=workflow)
    await rig.start()
    assert "3.0000 are spent, 6.0000 reserved" in (await rig.refused(waiting)).message
    await rig.say(report(first, 1.0), report(third, 6.0), StepSettled(step=third, status=Status.SUCCEEDED, usd=6.0))
    spent = await rig.refused(await rig.submit(workflow=workflow))
    assert "9.0000 are spent, 3.0000 reserved" in spent.message, "the third cost more than it had reserved"
    assert spent.retry_after_ms == 0
    await rig.say(BudgetSet(workflow=workflow, budget_usd=15.0))
    await rig.admitted(await rig.submit(workflow=workflow))
    await rig.admitted(await rig.submit(workflow="another"))
    assert rig.process is not None
    assert await rig.process.stop() == 0
    assert (await Replay(rig.bus, MACHINE, "main").verify()).differing == 0


async def test_what_is_said_about_a_budget_on_another_workflows_subject_is_parked(rig: Rig) -> None:
    await rig.register(usd_per_hour=3_600.0)
    await rig.start()
    forged = WorkflowOpened(workflow=WorkflowId("victim"), budget_usd=0.001)
    await (await rig.bus.store("legato.workflow.other.opened", ENCODER.encode(forged)))
    letter = await rig.first(DEAD.name, subjects.dead("admission"), DeadLetter)
    assert (letter.subject, "victim" in letter.error) == ("legato.workflow.other.opened", True)
    await rig.admitted(await rig.submit(workflow="victim"))


async def test_a_budget_binds_the_steps_of_the_tenant_whose_key_has_set_it(rig: Rig) -> None:
    await rig.register(usd_per_hour=3_600.0)
    await rig.start(TENANTS)
    ours, theirs = WorkflowId("ours"), WorkflowId("theirs")
    stranger = "sha256:" + "0" * 64
    await rig.say(WorkflowOpened(workflow=ours, key=KEY, budget_usd=1.0), BudgetSet(workflow=ours, key=stranger, budget_usd=99.0))
    await rig.say(WorkflowOpened(workflow=theirs, key=stranger, budget_usd=1.0, tenant=TenantId("acme")))
    assert (await rig.refused(await rig.submit(key=KEY, workflow=ours))).reason is Reason.BUDGET_SPENT
    await rig.admitted(await rig.submit(key=KEY, workflow=theirs))


def report(step: StepId, usd: float) -> AttemptEnded:
    return AttemptEnded(step=step, cell=CellId("local"), worker=WorkerId("w"), attempt=1, status=Status.SUCCEEDED, usd=usd)


async def test_a_step_submitted_twice_is_admitted_once(rig: Rig) -> None:
    await rig.register()
    await rig.start()
    step = await rig.submit()
    await rig.submit(step=step, prompt="something else")
    await rig.admitted(await rig.submit())  # decided after both
    admissions = [r async for r in rig.bus.history(STEPS.name, subjects.step_event(step, "admitted"))]
    assert len(admissions) == 1
    assert (await rig.first(PROMPTS.name, subjects.prompt(step), Prompt)).tokens == list(b"What do violins do all night?")


async def test_a_replay_of_its_journal_decides_the_same(rig: Rig) -> None:
    await rig.register()
    await rig.start(TENANTS)
    steps = [await rig.submit(key=KEY) for _ in range(4)] + [await rig.submit(), await rig.submit(body=b"[]", step="bad")]
    for step in steps:
        await rig.answer(step)
    assert rig.process is not None
    assert await rig.process.stop() == 0
    report = await Replay(rig.bus, MACHINE, "main").verify()
    assert report.inputs >= len(steps) + 1
    assert report.outputs == 2 + 2 * (len(steps) - 2)
    assert (report.differing, report.missing) == (0, 0)
