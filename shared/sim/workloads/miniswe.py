"""Sessions of a small coding agent with their whole prompts (mini-SWE-agent, recorded by LMCache, 2025; Apache-2.0).

A file of JSON lines for each session, a line for each call: `timestamp` in microseconds, `input` and `output` as texts. They show which
part of a prompt was there before: what it has in common with the one before, from its beginning. Answers are no part of later prompts.
Their times were made anew for replaying, so tools take times as in agent.py.
"""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Tenant
from shared.sim.workloads.source import Source, generated
from shared.sim.workloads.traces import PathText, found, parsed

ORIGIN = "https://github.com/LMCache/LMCache (recorded mini-SWE-agent sessions)"
CHARACTERS_A_TOKEN = 4  # of English and code, as a rule of thumb


class MiniSwe(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path`: a folder of sessions; each program plays one of them, drawn at random, with texts of its own."""

    path: PathText = "agents/lmcache_miniswe"
    tool_s: Lognormal = Lognormal(median=0.1, sigma=2.5, max=600)


class Line(msgspec.Struct, frozen=True):
    timestamp: int
    input: str
    output: str


class Step(NamedTuple):
    """One call, in tokens."""

    kept: int  # of the prompt before
    new: int
    output: int


def programs(settings: MiniSwe, source: Source) -> Iterator[Program]:
    """Sessions of mini-SWE-agent: recorded prompts, with what each has in common with the one before."""
    folder = found(source.data, settings.path, ORIGIN, folder=True)
    sessions = [_session(path) for path in sorted(folder.glob("*.jsonl"))]
    if not sessions:
        raise LegatoError(f"{folder} has no files *.jsonl: get them from {ORIGIN}")

    def calls(_: Tenant, random: Random) -> list[Call]:
        talk = Conversation(source, ())
        for step in random.choice(sessions):
            talk.keep(step.kept)
            if step.new:
                talk.say(step.new)
            talk.ask(step.output, settings.tool_s.draw(random) if talk.calls else 0.0)
        return talk.calls

    return generated(settings, source, calls)


def _session(path: Path) -> list[Step]:
    lines = sorted(parsed(path, msgspec.json.Decoder(Line).decode), key=lambda line: line.timestamp)
    steps = []
    before = ""
    for line in lines:
        kept = _tokens(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, line.input, strict=False))))
        steps.append(Step(kept, _tokens(len(line.input)) - kept, _tokens(len(line.output))))
        before = line.input
    return steps


def _tokens(characters: int) -> int:
    return characters // CHARACTERS_A_TOKEN
