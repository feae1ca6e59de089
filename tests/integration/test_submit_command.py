"""`legato submit` as a process on a real NATS. The fleet's side is spoken by the test: who reads its output, and how it may be left."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import End, Output
from shared.contracts.streams import STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Source
from shared.runtime.ids import new_id

LIMIT_S = 30.0
PIPE = asyncio.subprocess.PIPE
LATER = Problem(reason=Reason.RATE_LIMITED, message="over 2 requests per minute", retry_after_ms=900)


class Fleet:
    """What the command talks to."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.step = StepId(new_id())

    async def start(self, *words: str, stdout: int = PIPE) -> asyncio.subprocess.Process:
        """The command, once its submission is stored. With the name of a step it reads the stream, so nothing said is missed."""
        argv = ["-m", "legato", "submit", "Hello", "--model", "m", "--id", self.step, "--nats", self.bus.config.url, *words]
        process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=stdout, stderr=PIPE)
        await self.stored(subjects.submit(self.step))
        return process

    async def stored(self, subject: str) -> bytes:
        cursor = await self.bus.read(Source(stream=STEPS.name, subjects=(subject,)))
        try:
            [record] = await asyncio.wait_for(cursor.take(1), LIMIT_S)
            return record.data
        finally:
            await cursor.close()

    async def say(self, output: Output) -> None:
        await (await self.bus.store(subjects.outbox(self.step), ENCODER.encode(output)))

    async def end(self, status: Status, problem: Problem | None = None) -> None:
        await self.say(Output(attempt=1, offset=1, end=End(status=status, finish_reason=FinishReason.ERROR, problem=problem)))


@pytest.fixture
async def fleet(nats_url: str) -> AsyncIterator[Fleet]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test-fleet")
    await bus.ensure_streams()
    yield Fleet(bus)
    await bus.close()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    output, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode or 0, output.decode(), error.decode()


async def called(*words: str, said: bytes = b"") -> tuple[int, str, str]:
    """Exit status, output and errors of a command that needs no fleet."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "legato", *words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    output, error = await asyncio.wait_for(process.communicate(said), LIMIT_S)
    return process.returncode or 0, output.decode(), error.decode()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_whatever_asks_the_command_to_stop_the_step_is_cancelled(fleet: Fleet, number: signal.Signals, status: int) -> None:
    process = await fleet.start()
    await fleet.say(Output(attempt=1, tokens=[1], text="one\n"))
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), LIMIT_S) == b"one\n"
    process.send_signal(number)
    code, _, error = await ended(process)
    assert (code, error) == (status, "")
    assert b"interrupted" in await fleet.stored(subjects.cancel(fleet.step))


async def test_a_silence_is_told_and_what_to_look_at(fleet: Fleet) -> None:
    process = await fleet.start()
    assert process.stderr is not None
    told = await asyncio.wait_for(process.stderr.readline(), LIMIT_S)
    assert b"nobody has answered yet" in told
    assert b"legato status" in told
    await fleet.end(Status.REFUSED, LATER)
    code, _, error = await ended(process)
    assert (code, LATER.message in error) == (1, True)


async def test_when_the_reader_of_a_pipe_has_left_the_step_is_cancelled(fleet: Fleet) -> None:
    reading, writing = os.pipe()
    process = await fleet.start(stdout=writing)
    os.close(writing)
    os.close(reading)
    await fleet.say(Output(attempt=1, tokens=[1], text="one"))
    await fleet.stored(subjects.cancel(fleet.step))
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 1


@pytest.mark.parametrize("status", [Status.REFUSED, Status.FAILED, Status.EXPIRED, Status.SHED])
async def test_with_json_a_problem_is_an_object_on_standard_output_too(fleet: Fleet, status: Status) -> None:
    process = await fleet.start("--json")
    await fleet.say(Output(attempt=1, tokens=[1], text="one"))
    await fleet.end(status, LATER)
    code, output, error = await ended(process)
    told = json.loads(output)
    assert (code, told["id"], told["status"], told["text"]) == (1, fleet.step, status, "one")
    assert told["problem"] == {"reason": "rate_limit_exceeded", "message": LATER.message, "retry_after_ms": 900}
    assert LATER.message in error


async def test_with_json_and_stream_the_end_says_the_problem_and_nothing_follows_it(fleet: Fleet) -> None:
    process = await fleet.start("--json", "--stream")
    await fleet.end(Status.REFUSED, LATER)
    code, output, _ = await ended(process)
    [line] = output.splitlines()
    assert (code, json.loads(line)["end"]["problem"]["reason"]) == (1, "rate_limit_exceeded")


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=str)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nats", "nats://127.0.0.1:1"], "nobody listens at nats://127.0.0.1:1"),
        (["--timeout", "0"], "--timeout should be"),
    ],
    ids=str,
)
async def test_with_json_what_kept_a_step_from_being_submitted_is_an_object_too(words: list[str], said: str, stream: list[str]) -> None:
    code, output, error = await called("submit", "Hello", "--json", *words, *stream)
    assert code == 1
    assert said in json.loads(output)["problem"]["message"]
    assert said in error


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
@pytest.mark.parametrize("words", [[], ["--raw"], ["--system", "Be brief."]], ids=str)
async def test_an_empty_prompt_is_refused(text: str, words: list[str]) -> None:
    code, output, error = await called("submit", text, *words)
    assert (code, output) == (1, "")
    assert error.startswith("legato: the prompt is empty")


async def test_an_empty_standard_input_is_refused() -> None:
    code, _, error = await called("submit", "-", said=b"\n")
    assert code == 1
    assert error.startswith("legato: standard input is empty")
