"""Prompts that wait for their decision: bounded, in order, and gone once decided."""

import asyncio

import msgspec
import pytest

from services.admission.config import AdmissionConfig
from services.admission.intake import ENVELOPE_BYTES, oversize, watched
from services.admission.prompts import Prompts
from services.admission.state import State
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import MessageId, ModelName, StepId, TenantId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import Job, Prompt, StepAdmitted, StepRefused, SubmissionRead
from shared.core.machine import ENCODER


def prompt(tokens: int) -> Prompt:
    return Prompt(step=StepId("s"), model=ModelName("m"), tokens=[1] * tokens, block_tokens=16, blocks=[])


def admitted() -> StepAdmitted:
    job = Job(model=ModelName("m"), prompt_tokens=1, max_tokens=1)
    return StepAdmitted(step=StepId("s"), tenant=TenantId("t"), cause=MessageId("whatever made room"), time_ns=5, job=job)


def read(name: str) -> SubmissionRead:
    return SubmissionRead(id=MessageId(name), step=StepId("s"))


async def until_idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_prompt_goes_out_before_its_admission_once_and_names_its_tenant_and_cause() -> None:
    prompts = Prompts(100)
    prompts.put(MessageId("a"), prompt(3))
    assert prompts.attach(admitted()) == []
    prompts.decided(read("a"), [admitted()], held=True)
    expected = msgspec.structs.replace(prompt(3), tenant=TenantId("t"), cause=MessageId("a"), time_ns=5)
    assert prompts.attach(admitted()) == [expected]
    assert prompts.attach(admitted()) == []
    assert len(prompts) == 0


def test_a_held_prompt_goes_out_when_it_is_admitted_and_a_copy_of_its_submission_leaves_it_alone() -> None:
    prompts = Prompts(100)
    for name, tokens in (("a", 3), ("copy", 4)):
        prompts.put(MessageId(name), prompt(tokens))
    prompts.decided(read("a"), [], held=True)
    prompts.decided(read("copy"), [], held=False)
    prompts.decided(Tick(), [admitted()], held=False)
    assert [len(each.tokens) for each in prompts.attach(admitted())] == [3]  # type: ignore[attr-defined]
    assert len(prompts) == 0


def test_a_held_prompt_is_forgotten_when_it_is_refused() -> None:
    prompts = Prompts(100)
    prompts.put(MessageId("a"), prompt(3))
    prompts.decided(read("a"), [], held=True)
    prompts.decided(Tick(), [StepRefused(step=StepId("s"), problem=Problem(reason=Reason.RATE_LIMITED, message="no"))], held=False)
    assert len(prompts) == 0


def test_a_submission_whose_decision_failed_leaves_no_prompt_behind() -> None:
    def fail(*_: object) -> list[Message]:
        raise RuntimeError("a bug")

    prompts = Prompts(100)
    prompts.put(MessageId("a"), prompt(3))
    with pytest.raises(RuntimeError):
        watched(fail, prompts)(State(), read("a"), 0, AdmissionConfig())
    assert len(prompts) == 0


def test_a_prompt_that_is_not_admitted_is_forgotten() -> None:
    prompts = Prompts(100)
    for name in "abc":
        prompts.put(MessageId(name), prompt(3))
    prompts.decided(read("a"), [], held=False)
    prompts.decided(read("b"), [admitted()], held=True)
    assert len(prompts) == 2


async def test_nobody_may_prepare_while_too_many_tokens_wait_and_then_in_order() -> None:
    prompts, passed = Prompts(100), []

    async def bring(number: int) -> None:
        await prompts.room()
        passed.append(number)
        prompts.put(MessageId(str(number)), prompt(60))

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(bring(number))
        await until_idle()
        assert passed == [0, 1]
        for number in range(5):
            prompts.decided(read(str(number)), [], held=False)
            await until_idle()
    assert passed == [0, 1, 2, 3, 4]


async def test_a_prompt_larger_than_the_bound_passes_when_nothing_else_waits() -> None:
    prompts = Prompts(10)
    await prompts.room()
    prompts.put(MessageId("a"), prompt(1_000))
    prompts.decided(read("a"), [], held=False)
    await prompts.room()


def test_a_prompt_that_no_message_could_hold_is_refused_with_its_size() -> None:
    small = Prompt(step=StepId("s"), model=ModelName("m"), tokens=[1] * 1_000, block_tokens=16, blocks=[-(2**63)] * 62)
    size = len(ENCODER.encode(small)) + ENVELOPE_BYTES
    assert oversize(small, 1_000_000) is None
    assert oversize(small, size) is None
    problem = oversize(small, size - 1)
    assert problem is not None
    assert problem.reason is Reason.TOO_LARGE
    assert str(size) in problem.message
