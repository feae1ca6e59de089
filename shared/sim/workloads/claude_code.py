"""Recorded sessions of a coding agent (Claude Code, 2026; GPL-2.0: input only).

A folder for each session. `trace.jsonl`: events; a message of the model comes in several, with the same `message.id` and the same usage of
tokens. `tool_calls.json`: when each tool began and ended. What the usage says about outputs is unreliable (it is that of the stream's
beginning), so they are at least as long as their texts. A sub-agent has a context of its own, between the call that started it and the next
one of whoever did.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Program
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.settings import Arriving
from shared.sim.workloads.source import Source, generated
from shared.sim.workloads.traces import PathText, found, parsed

ORIGIN = "recorded sessions of Claude Code, a folder with trace.jsonl and tool_calls.json for each"
CHARACTERS_A_TOKEN = 4  # of English and code, as a rule of thumb


class ClaudeCode(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path`: a folder of sessions; each program plays one of them, drawn at random. They have the tools and the system prompt in common,
    by model; all else is their own."""

    path: PathText = "agents/claude_code"


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


class Block(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    id: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class Message(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    usage: Usage | None = None
    content: str | list[Block] = ""


class Event(msgspec.Struct, frozen=True):
    uuid: str = ""  # none: a note about the session
    parent: str | None = msgspec.field(name="parentUuid", default=None)
    message: Message | None = None


class Tool(msgspec.Struct, frozen=True):
    id: str
    begun: datetime = msgspec.field(name="timestamp")
    ended: datetime | None = msgspec.field(name="end_timestamp", default=None)


class Step(msgspec.Struct):
    """A call of the model, as its events say."""

    chain: str  # the first event of the context that it belongs to
    model: str
    prompt: int  # tokens
    cached: int  # of them, when it was recorded
    output: int = 0
    characters: int = 0
    wait_s: float = 0.0  # of its tools, which run side by side


def programs(settings: ClaudeCode, source: Source) -> Iterator[Program]:
    """Sessions of Claude Code: recorded growth of prompts, sub-agents and times of tools."""
    folder = found(source.data, settings.path, ORIGIN, folder=True)
    sessions = [_session(path.parent) for path in sorted(folder.glob("*/trace.jsonl"))]
    if not all(sessions) or not sessions:
        raise LegatoError(f"{folder} has no folders with calls in trace.jsonl; what it needs are {ORIGIN}")
    systems: dict[str, int] = {}  # the most that was cached when a context began: all of that model have it
    for session in sessions:
        for chain in dict.fromkeys(step.chain for step in session):
            first = next(step for step in session if step.chain == chain)
            systems[first.model] = max(systems.get(first.model, 0), first.cached)
    return generated(settings, source, lambda _, random: _calls(random.choice(sessions), systems, source))


def _calls(session: list[Step], systems: dict[str, int], source: Source) -> Iterator[Call]:
    main = session[0].chain
    talks: dict[str, Conversation] = {}
    open_sides: dict[str, Call] = {}  # the last call of each sub-agent that nobody has read yet
    waits: dict[str, float] = {}
    for step in session:
        talk = talks.get(step.chain)
        if talk is None:
            after = [talks[main].calls[-1].key] if talks else []
            name = f"agent-{len(talks)}" if talks else "main"
            talk = talks[step.chain] = Conversation(source, (), name)
            if shared := min(step.cached or systems[step.model], step.prompt):
                talk.quote([source.shared(f"system {step.model}", shared)])
        else:
            grows = step.prompt > talk.calls[-1].prompt_tokens
            talk.keep(step.prompt if grows else min(step.cached, step.prompt))
            after = [talk.calls[-1].key]
        if step.chain == main and open_sides:
            after += [call.key for call in open_sides.values()]
            open_sides.clear()
            waits[main] = 0.0  # the tool was the sub-agent
        if step.prompt > talk.tokens:
            talk.say(step.prompt - talk.tokens)
        call = talk.ask(step.output, waits.get(step.chain, 0.0), after)
        waits[step.chain] = step.wait_s
        if step.chain != main:
            open_sides[step.chain] = call
        yield call


def _session(folder: Path) -> list[Step]:
    """Calls in the order in which they began."""
    took = _tools(folder / "tool_calls.json")
    chains: dict[str, str] = {}
    steps: dict[str, Step] = {}
    for event in parsed(folder / "trace.jsonl", msgspec.json.Decoder(Event).decode):
        if not event.uuid:
            continue
        chain = chains[event.uuid] = chains.get(event.parent or "", event.uuid)
        if (message := event.message) is None or (usage := message.usage) is None:
            continue
        prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        if not prompt:  # a note of the client's
            continue
        step = steps.setdefault(message.id, Step(chain, message.model, prompt, usage.cache_read_input_tokens))
        for block in message.content if isinstance(message.content, list) else ():
            step.characters += len(block.text) + len(bytes(block.input))
            step.wait_s = max(step.wait_s, took.get(block.id, 0.0))
        step.output = max(step.output, usage.output_tokens, step.characters // CHARACTERS_A_TOKEN)
    return list(steps.values())


def _tools(path: Path) -> dict[str, float]:
    """Seconds that each call of a tool took."""
    try:
        tools = msgspec.json.decode(path.read_bytes(), type=list[Tool])
    except OSError as error:
        raise LegatoError(f"cannot read {path}: {error.strerror}; what is needed are {ORIGIN}") from error
    except msgspec.DecodeError as error:
        raise LegatoError(f"{path}: {error}") from error
    return {tool.id: max(0.0, (tool.ended - tool.begun).total_seconds()) for tool in tools if tool.ended}
