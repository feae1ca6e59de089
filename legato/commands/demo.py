"""`legato demo`: the whole way once, with a kill in the middle. Exits 0 only when all of it was seen to work."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import typer

from legato.client import Client, Step
from legato.commands.options import finish
from legato.commands.up import Engine
from legato.console import out, say, waiting
from legato.fleet import Fleet
from legato.plan import Wanted
from shared.contracts.outcomes import Status
from shared.core.errors import LegatoError
from shared.runtime.server_directory import free_port

DATA = Path(".legato/demo")
VICTIM = "scheduler-0"
QUESTION = "In two sentences: what does an orchestra do when the conductor leaves the room?"
TOKENS = 60
KILL_AFTER_TOKENS = 8
LIMIT_S = 300.0


def demo(
    engine: Engine = "sglang",
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Emptied at the start.")] = DATA,
) -> None:
    """Start a fleet, stream a prompt by NATS and by HTTP, kill a service in mid-stream, show the step's timeline, replay every decision.

    legato demo                       # SGLang on this machine's CPU, with a real small model
    legato demo --engine simulated    # no model: made-up words, real everything else
    """
    finish(_demo(engine, data))


async def _demo(engine: str, data: Path) -> None:
    shutil.rmtree(data, ignore_errors=True)
    wanted = Wanted(engine=engine, workers=1, port=free_port(), settings=["simulated.time_scale=4"])
    async with asyncio.timeout(LIMIT_S + (600 if engine == "sglang" else 0)):
        async with Fleet(data, wanted, lambda line: out.print(f"  [yellow]· {line}[/]", soft_wrap=True)) as fleet:
            with waiting(f"Starting {fleet.size} processes, nats-server and Postgres among them" + _patience(engine)):
                await fleet.start()
            await _acts(fleet)
        _title("all of it worked; every process has been stopped")


def _patience(engine: str) -> str:
    return "; SGLang loads a model, which takes half a minute" if engine == "sglang" else ""


async def _acts(fleet: Fleet) -> None:
    async with Client(fleet.running.nats) as client:
        model = await _model(client)
        _title(f"1. {model} answers by NATS: publish to legato.submit.<step>, read legato.out.<step>")
        await _tell(await _ask(client, model), None)
        _title("2. the same by HTTP, in OpenAI's dialect: POST /v1/chat/completions")
        await _by_http(fleet.running.http, model)
        _title(f"3. {VICTIM} is killed (SIGKILL) while the text streams")
        step = await _ask(client, model)
        await _tell(step, fleet)
        await _back(fleet)
    _title("4. what happened to that step, from the event log: legato timeline STEP")
    await _legato(fleet, "timeline", step.id)
    _title("5. every decision taken again from the recorded inputs: legato replay SERVICE --verify")
    for service in ("admission", "router", "scheduler", "kv_registry"):
        await _legato(fleet, "replay", service, "--verify")


async def _model(client: Client) -> str:
    """The chat model that is served; a worker's card may be stored a moment after it is ready."""
    async with asyncio.timeout(10):
        while not (served := await client.models()):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.1)
    return served[0].name


async def _ask(client: Client, model: str) -> Step:
    return await client.submit(model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=TOKENS, temperature=0)


async def _tell(step: Step, kill_in: Fleet | None) -> None:
    """Print the text as it comes; kill the victim on the way. Raises when the step does not end well."""
    count = 0
    async for output in step:
        print(output.text, end="", flush=True)
        count += len(output.tokens)
        if kill_in is not None and count >= KILL_AFTER_TOKENS and output.end is None:
            pid, kill_in = kill_in.running.processes[VICTIM], None
            print(f" ‹SIGKILL {VICTIM}› ", end="", flush=True)
            os.kill(pid, signal.SIGKILL)
        if output.end is not None:
            print(flush=True)
            if output.end.status is not Status.SUCCEEDED:
                raise LegatoError(f"step {step.id} ended as {output.end.status}: {output.end.problem}")
            usage = output.end.usage
            say(f"step {step.id}: {usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), {usage.output_tokens} output tokens")
    if kill_in is not None:
        raise LegatoError(f"the step ended before {VICTIM} could be killed: nothing was shown")


async def _by_http(url: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "temperature": 0, "stream": True}
    done = False
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise LegatoError(f"HTTP {reply.status}: {await reply.text()}")
        async for line in reply.content:
            if line.startswith(b"data: {"):
                for choice in msgspec.json.decode(line[6:])["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
            done = done or line.startswith(b"data: [DONE]")
    print(flush=True)
    if not done:
        raise LegatoError("the HTTP stream broke off before [DONE]")


async def _back(fleet: Fleet) -> None:
    """Wait until the victim's successor answers."""
    async with asyncio.timeout(30):
        await fleet.until_ready([VICTIM])


async def _legato(fleet: Fleet, *arguments: str) -> None:
    """Run one of the other commands, as a person would. Raises when it fails."""
    command = [sys.executable, "-m", "legato", *arguments, "--data", str(fleet.data)]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "COLUMNS": os.environ.get("COLUMNS", "140")})
    if await process.wait():
        raise LegatoError(f"legato {' '.join(arguments)} failed with exit status {process.returncode}")


def _title(text: str) -> None:
    out.print(f"\n[bold]{text}[/]\n", soft_wrap=True)
