"""Readers of single steps, by NATS and by HTTP: each compares what it hears with what must be said, as it comes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

import aiohttp
import msgspec

from bench.chaos.asks import Ask
from legato import Client, StepError
from legato.client import Step
from legato.request import StepRequest
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.output import Output
from shared.core.errors import LegatoError
from shared.runtime.output_reader import OutputError

AGAIN_S = 0.2


class Wrong(StrEnum):
    """What must never happen."""

    LOST = "lost"  # accepted, and not answered in full
    GAP = "gaps"
    REPEAT = "repeats"
    DIFFERENT = "different"  # other tokens, other text, or too few or too many
    TWICE = "settled or paid twice"
    LEFT = "left behind"  # processes


class Fault(msgspec.Struct, frozen=True):
    """One of them. `about`: a step, a workflow, a process."""

    wrong: Wrong
    about: str
    detail: str


class Heard(msgspec.Struct, frozen=True):
    """When (monotonic, ns) a reader had something, of which attempt, and how many tokens it had by then."""

    at_ns: int
    attempt: int
    tokens: int


class Reading(msgspec.Struct):
    """What one reader had of one step."""

    step: StepId
    ask: Ask
    choice: bool = False  # one of those that a request asked for; "" is its step until it is known
    accepted: bool = False
    ended: bool = False
    heard: list[Heard] = []
    faults: list[Fault] = []
    tokens: list[int] = []
    text: str = ""

    def hear(self, output: Output) -> None:
        """Compare the next output."""
        have = len(self.tokens)
        if output.offset != have:
            wrong = Wrong.GAP if output.offset > have else Wrong.REPEAT
            self.wrong(wrong, f"an output of attempt {output.attempt} begins at {output.offset}, {have} tokens were there")
        self.tokens += output.tokens
        self.text += output.text
        if output.tokens:
            self.heard.append(Heard(time.monotonic_ns(), output.attempt, len(self.tokens)))
            if output.tokens != self.ask.expected[have : have + len(output.tokens)]:
                self.wrong(Wrong.DIFFERENT, f"attempt {output.attempt} says other tokens from {have} on")
        if output.end is None:
            return
        self.ended = True
        if output.end.status is not Status.SUCCEEDED:
            self.wrong(Wrong.LOST, f"ended as {output.end.status}: {output.end.problem}")
        elif self.tokens != self.ask.expected or self.text != self.ask.text:
            self.wrong(Wrong.DIFFERENT, f"ended with {len(self.tokens)} tokens and {len(self.text)} characters that are not the answer")

    def take(self, step: StepId, tokens: list[int], text: str) -> None:
        """Compare an answer that came whole."""
        self.step, self.tokens, self.text = step, tokens, text
        self.accepted = self.ended = True
        if (tokens, text) != (self.ask.expected, self.ask.text):
            self.wrong(Wrong.DIFFERENT, f"{len(tokens)} tokens and {len(text)} characters came that are not the answer")

    def wrong(self, wrong: Wrong, detail: str) -> None:
        self.faults.append(Fault(wrong, self.step, detail))


async def read_by_nats(client: Client, reading: Reading) -> None:
    """Submit, again until it is stored, and read to the end."""
    asked: StepRequest = {**reading.ask.request, "step_id": reading.step}
    while True:
        try:
            step = await client.submit(**asked)
        except LegatoError:  # not stored, or nobody said so: the same id again is the same step
            await asyncio.sleep(AGAIN_S)
        else:
            break
    reading.accepted = True
    await read_step(step, reading)


async def read_step(step: Step, reading: Reading) -> None:
    """Read to the end."""
    try:
        async for output in step:
            reading.hear(output)
    except OutputError as error:
        reading.wrong(Wrong.GAP, str(error))
    finally:
        await step.close()


async def read_choices(client: Client, readings: Sequence[Reading]) -> None:
    """All choices of one request, again until all have come: with new ids each time, because a try that fails cancels its steps."""
    while True:
        try:
            results = await client.choices(len(readings), **readings[0].ask.request)
        except OutputError as error:
            return readings[0].wrong(Wrong.GAP, str(error))
        except StepError as error:
            return readings[0].wrong(Wrong.LOST, f"a choice ended as {error.result.status}: {error.problem}")
        except LegatoError:  # not stored, or nobody said so
            await asyncio.sleep(AGAIN_S)
        else:
            break
    for reading, result in zip(readings, results, strict=True):
        reading.take(result.id, result.tokens, result.text)


class HttpCounts(msgspec.Struct):
    """What became of answers by HTTP, each choice counted. A gateway that dies takes its connections with it; the steps go on."""

    whole: int = 0
    cut: int = 0  # and read to the end by NATS
    cancelled: int = 0  # by a gateway that was asked to stop
    not_taken: int = 0  # connection refused, 503, or broken off before the step had a name


async def read_by_http(
    session: aiohttp.ClientSession, url: Callable[[], str], asks: Sequence[Ask], counts: HttpCounts
) -> tuple[list[StepId], list[str], bool]:
    """Ask until a stream begins; of each choice its step's id and the text that came, and whether all came to their end."""
    body = {**asks[0].request, "n": len(asks), "stream": True}
    while True:
        steps, texts, done = [StepId("")], [""] * len(asks), False
        try:
            async with session.post(f"{url()}/v1/completions", json=body) as reply:
                if reply.status == 200:
                    steps = [StepId(step) for step in reply.headers["X-Legato-Step"].split(", ")]
                    async for line in reply.content:
                        done = done or line.startswith(b"data: [DONE]")
                        if line.startswith(b"data: {"):
                            for choice in msgspec.json.decode(line[6:]).get("choices", []):
                                texts[choice["index"]] += choice["text"]
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass  # the gateway went; what came before counts
        if len(steps) == len(asks) and all(steps):
            return steps, texts, done
        counts.not_taken += 1
        await asyncio.sleep(AGAIN_S)


async def check_by_http(
    session: aiohttp.ClientSession, url: Callable[[], str], client: Client, readings: Sequence[Reading], counts: HttpCounts
) -> None:
    """The choices of one request by HTTP. Where the connection breaks off, their steps are read by NATS: what HTTP gave must be their
    beginning."""
    steps, texts, done = await read_by_http(session, url, [reading.ask for reading in readings], counts)
    for reading, step in zip(readings, steps, strict=True):
        reading.step, reading.accepted = step, True
    async with asyncio.TaskGroup() as group:
        for reading, text in zip(readings, texts, strict=True):
            group.create_task(_check_text(client, reading, (text, done), counts))


async def _check_text(client: Client, reading: Reading, came: tuple[str, bool], counts: HttpCounts) -> None:
    text, done = came
    if not reading.ask.text.startswith(text):
        reading.wrong(Wrong.DIFFERENT, f"{len(text)} characters came by HTTP that are not the beginning of the answer")
    if done:
        counts.whole += 1
        reading.ended = True
        if text != reading.ask.text:
            reading.wrong(Wrong.DIFFERENT, f"HTTP ended with {len(text)} characters of {len(reading.ask.text)}")
        return
    step = await client.step(reading.step)
    rest = Reading(step=reading.step, ask=reading.ask)
    await read_step(step, rest)
    if step.so_far.status is Status.CANCELLED:
        counts.cancelled += 1
        reading.accepted, reading.ended = False, True  # nobody waits for its success
        return
    counts.cut += 1
    reading.ended = rest.ended
    reading.faults += rest.faults
