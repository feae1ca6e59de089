"""Workflows: small agents that crash in odd places and start again from the top, as their platform would start them."""

import asyncio
import random
from contextlib import aclosing

import msgspec

from bench.chaos.asks import Ask
from bench.chaos.readers import Fault, Wrong
from legato import Client, StepError, WorkflowError
from shared.contracts.outcomes import Status
from shared.core.errors import LegatoError

AGAIN_S = 0.3
KIND = "chaos"


class Crash(Exception):
    """The program ends here, as if it had been killed."""


class Program(msgspec.Struct):
    """One workflow: for each round a step, a side effect, and a streamed step. `crashes`: after how many acts it crashes, each once."""

    id: str
    rounds: list[tuple[Ask, Ask]]
    crashes: list[int]
    runs: int = 0
    done: bool = False
    values: dict[str, str] = {}  # what was recorded, by name
    faults: list[Fault] = []

    @property
    def steps(self) -> int:
        return 2 * len(self.rounds)

    def wrong(self, wrong: Wrong, detail: str) -> None:
        self.faults.append(Fault(wrong, self.id, detail))


def program(draw: random.Random, name: str, rounds: list[tuple[Ask, Ask]]) -> Program:
    """With one or two crashes at random places."""
    return Program(id=name, rounds=rounds, crashes=sorted(draw.sample(range(1, 4 * len(rounds)), draw.choice((1, 2)))))


async def run_program(url: str, program: Program) -> None:
    """Run until it is done, starting again after each crash, and after each error that a fleet in trouble may give."""
    while not program.done:
        program.runs += 1
        try:
            await _run(url, program)
        except Crash:
            continue
        except (StepError, WorkflowError) as error:
            program.wrong(Wrong.LOST, f"{type(error).__name__}: {error}")
            return
        except LegatoError:  # NATS or Postgres stayed away too long for this run; the next one goes on
            await asyncio.sleep(AGAIN_S)


class _Acts:
    """Counts what a run does, and crashes when it is time."""

    def __init__(self, program: Program) -> None:
        self._crashes = program.crashes
        self._count = 0

    def another(self) -> None:
        self._count += 1
        if self._crashes and self._count >= self._crashes[0]:
            del self._crashes[0]
            raise Crash


async def _run(url: str, program: Program) -> None:
    acts = _Acts(program)
    async with Client(url, name=program.id) as client, client.workflow(KIND, id=program.id, steps_planned=program.steps) as workflow:
        for number, (plan, write) in enumerate(program.rounds):
            result = await workflow.step(f"plan {number}", **plan.request)
            if (result.tokens, result.text, result.status) != (plan.expected, plan.text, Status.SUCCEEDED):
                program.wrong(Wrong.DIFFERENT, f"step 'plan {number}' gave {len(result.tokens)} tokens that are not the answer")
            acts.another()
            name = f"fetch {number}"

            async def act(key: str) -> str:
                acts.another()  # the side effect is done, and not recorded yet
                return f"{key} in run {program.runs}"

            value = await workflow.record(name, act)
            if program.values.setdefault(name, value) != value:
                program.wrong(Wrong.DIFFERENT, f"value {name!r} was {program.values[name]!r} and is {value!r}")
            text = ""
            async with aclosing(workflow.stream(f"write {number}", **write.request)) as pieces:
                async for piece in pieces:
                    if not text:
                        acts.another()
                    text += piece
            if text != write.text:
                program.wrong(Wrong.DIFFERENT, f"step 'write {number}' streamed {len(text)} characters that are not the answer")
            acts.another()
        await workflow.complete(score=1.0)
    program.done = True
