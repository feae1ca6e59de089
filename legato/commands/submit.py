"""`legato submit`: one step, from the command line."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import msgspec
import nats.errors
import typer

from legato.addresses import DATA
from legato.client import Client, Step
from legato.commands.options import Data, Json, Key, Nats, connected_client, finish
from legato.console import print_json, say, saying_when_slow
from legato.outcome import Result, StepError
from legato.request import StepRequest
from legato.served import Served
from shared.contracts.output import Output
from shared.core.errors import LegatoError

TIMEOUT_MAX_S = 86_400  # as Submission has it
UNANSWERED_S = 3.0  # until it is told
UNANSWERED = "nobody has answered yet; `legato status` shows what is missing, or how much waits"
CANCEL_S = 2.0  # nobody who presses Ctrl-C waits longer


class Timings(msgspec.Struct, kw_only=True):
    """As seen from here, in milliseconds since the submission."""

    first_token_ms: float = 0.0
    total_ms: float = 0.0


Text = Annotated[str, typer.Argument(help="What to say; `-` reads standard input.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Default: the first one served (`legato models`).")]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", help="Show the text as it comes. Default: yes, but not with --json.")]


def submit(  # noqa: PLR0913  # options
    text: Text,
    model: Model = "",
    stream: Stream = None,
    json: Json = False,
    system: Annotated[str, typer.Option("--system", help="System message.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the model's chat template.")] = False,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2)] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Must have finished within, in seconds.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", min=-100, max=100, help="Higher goes first.")] = None,
    step_id: Annotated[str, typer.Option("--id", help="Name of the step; the same again joins it. Default: a new one.")] = "",
    key: Key = "",
    nats: Nats = "",
    data: Data = DATA,
) -> None:
    """Submit a prompt and print what the model says.

    Ctrl-C and SIGTERM cancel the step.
    `--json` prints one object with text, tokens, usage and times, and a `problem` where there is one; with `--stream` every output message,
    one per line. The exit status is 0 only when the step succeeded or was cancelled.

        legato submit "Why is the sky blue?" --max-tokens 64
        cat notes.txt | legato submit - --system "Summarise." --temperature 0
        legato submit "Once upon a time" --raw --json | jq -r .text
    """
    wanted: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or None,
        "priority": priority,
        "step_id": step_id or None,
    }
    request = {"model": model, **{name: value for name, value in wanted.items() if value is not None}}
    printer = _Printer(json, (not json) if stream is None else stream)

    async def work(speech: _Speech) -> None:
        async with connected_client(nats, data, key) as client:
            await _submit(client, request, speech, printer)

    with printer.telling():
        if timeout is not None:
            request["timeout_ms"] = _milliseconds(timeout)
        finish(work(_Speech(text=_content(text), system=system, raw=raw)))


def _milliseconds(timeout: float) -> int:
    if not 0 < timeout <= TIMEOUT_MAX_S:  # nor is nan
        raise LegatoError(f"--timeout should be between 0 and {TIMEOUT_MAX_S} seconds, not {timeout:g}")
    return max(1, round(timeout * 1000))


def _content(text: str) -> str:
    """What is to be said. Raises LegatoError where it is nothing: a model would answer that too, and nobody means it."""
    content = sys.stdin.read() if text == "-" else text
    if not content.strip():
        where = "standard input is empty" if text == "-" else "the prompt is empty"
        raise LegatoError(f'{where}: write for example `legato submit "Hello"`, or `… | legato submit -`')
    return content


class _Speech(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    system: str
    raw: bool

    def arguments(self, chat: bool) -> dict[str, Any]:
        if self.raw or not chat:
            return {"prompt": f"{self.system}\n\n{self.text}" if self.system else self.text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, {"role": "user", "content": self.text}]}


async def _submit(client: Client, request: dict[str, Any], speech: _Speech, printer: "_Printer") -> None:
    served = _choose(await client.models(), request["model"])
    request |= speech.arguments(served is None or served.chat)
    request["model"] = request["model"] or (served.name if served else "")
    began = time.monotonic()
    step = await client.submit(**StepRequest(**request))  # type: ignore[typeddict-item]
    try:
        await printer.follow(step, began)
    except (asyncio.CancelledError, BrokenPipeError):  # Ctrl-C and the like; or whoever read our output has left
        await _try_cancel(step)
        raise
    finally:
        await step.close()


async def _try_cancel(step: Step) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await step.cancel("interrupted")
    except (TimeoutError, LegatoError):
        say(f"\nNATS does not answer: step {step.id} was not cancelled")


def _choose(served: list[Served], model: str) -> Served | None:
    """The model asked for, as far as it is known here (None: an alias, perhaps), or the first one."""
    if model:
        return next((each for each in served if each.name == model), None)
    usable = [each for each in served if each.workers] or served
    if not usable:
        raise LegatoError("no worker serves a model now: `legato up` starts some, `legato status` shows what runs")
    if len(usable) > 1:
        say(f"asking {usable[0].name}; others with --model: {', '.join(each.name for each in usable[1:])}")
    return usable[0]


class _Printer:
    """Shows a step's output as it was asked for."""

    def __init__(self, json: bool, stream: bool) -> None:
        self._json = json
        self._stream = stream
        self._timings = Timings()
        self._told = False  # the end, as a streamed output

    @contextmanager
    def telling(self) -> Iterator[None]:
        """With --json, what goes wrong is printed where programs read results, as well as raised."""
        try:
            yield
        except (LegatoError, nats.errors.Error) as error:
            if self._json and not self._told:
                print_json(self._failure(error))
            raise

    def _failure(self, error: Exception) -> dict[str, Any]:
        if not isinstance(error, StepError):
            return {"problem": {"message": str(error)}}
        return {**msgspec.to_builtins(error.result), **msgspec.to_builtins(self._timings), "problem": msgspec.to_builtins(error.problem)}

    async def follow(self, step: Step, began: float) -> None:
        with ExitStack() as unanswered:
            if not self._json:
                unanswered.enter_context(saying_when_slow(UNANSWERED, UNANSWERED_S))
            async for output in step:
                unanswered.close()
                self._show(output, began)
        self._timings.total_ms = (time.monotonic() - began) * 1e3
        if self._stream and not self._json and step.so_far.text:
            print()
        result = await step.result()
        self._finish(result)

    def _show(self, output: Output, began: float) -> None:
        if output.tokens and not self._timings.first_token_ms:
            self._timings.first_token_ms = (time.monotonic() - began) * 1e3
        if self._stream and self._json:
            print_json(output)
            self._told = output.end is not None
        elif self._stream:
            print(output.text, end="", flush=True)

    def _finish(self, result: Result) -> None:
        if self._json and not self._stream:
            print_json({**msgspec.to_builtins(result), **msgspec.to_builtins(self._timings)})
        elif not self._json:
            if not self._stream:
                print(result.text)
            say(_summary(result, self._timings))


def _summary(result: Result, timings: Timings) -> str:
    usage = result.usage
    prompt = f"{usage.prompt_tokens} in ({usage.cached_tokens} cached), {usage.output_tokens} out"
    times = f"first token after {timings.first_token_ms:.0f} ms, all after {timings.total_ms:.0f} ms"
    return f"{result.status}: {result.finish_reason} · {prompt} · {times} · legato timeline {result.id}"
