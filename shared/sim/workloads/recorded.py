"""What clients asked of a fleet, as `legato record` wrote it down: when, by whom, how long, and which prompts begin alike. No texts.

Lines of JSON, one for each step, in the order of asking (`Row`). The prompts' blocks are the engines' own hashes: the same hash is the same
text after the same beginning. A prompt that grows is written once: each line has what is new behind a path that an earlier line has ended.
What is behind the last full block is a text of its own. Where a prompt goes on with the recorded answer of an earlier step, it does so
here, so that the answer's KV is found again.

Pauses between the steps of a workflow are those of tools and people: `rate` does not change them, only how often programs begin.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shared.core.errors import LegatoError
from shared.sim.programs import MASK, Behaviour, Call, Program, Segment, mixed
from shared.sim.workloads.settings import Tenant
from shared.sim.workloads.source import Source
from shared.sim.workloads.traces import Trace, found, parsed, played

ORIGIN = "a running fleet, with `legato record FILE`"
SLACK_NS = 10_000_000  # an end reaches its reader a little before admission's journal: who asks so close behind it has read it

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]


class Recorded(Trace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model`: of all steps, whatever was recorded. `tenants`: what those that are named here count as served well, and how they behave;
    shares and priorities are the recorded ones."""


class Quote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`blocks` of a prompt's blocks, from the `at`-th on (from 0), are an earlier step's answer, behind the last `rest` tokens of its
    prompt."""

    step: str
    at: Natural
    blocks: Positive
    rest: Natural


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One step. Times: Unix, nanoseconds, by admission's clock; `ended_ns` 0: not known. `guessed`: nobody knows its answer's length (it
    was refused, or has not ended), so that it is the middle one of others. `cached_tokens`: as it was, for comparison. `tries`: how often
    it was asked for, as a step of its workflow. `block_tokens` 0: the prompt's blocks are not known. `after`: the last block of an earlier
    line's prompt, which this one begins with; `blocks`: those behind it."""

    step: Annotated[str, Meta(min_length=1)]
    asked_ns: Natural
    ended_ns: Natural = 0
    tenant: str = "default"
    workflow: str = ""
    model: str
    priority: int = 0
    timeout_ms: Natural = 0
    prompt_tokens: Positive
    max_tokens: Natural = 0
    output_tokens: Positive
    guessed: bool = False
    cached_tokens: Natural = 0
    status: str = ""
    reason: str = ""
    tries: Positive = 1
    block_tokens: Natural = 0
    after: int | None = None
    blocks: list[int] = []
    quotes: Quote | None = None


class _Path(NamedTuple):
    after: int | None
    blocks: "array[int]"


class Log:
    """A whole file, its prompts as short as they are written. `seconds`: from the first step to the last one."""

    def __init__(self, path: Path) -> None:
        """Raises LegatoError that names the line which cannot be."""
        self.rows: list[Row] = []
        self.quoted: dict[int, Quote] = {}  # by block
        self._paths: dict[int, _Path] = {}  # by their last block, which names the whole
        try:
            self.rows += parsed(path, lambda line: self._taken(_DECODER.decode(line)))
        except OSError as error:
            raise LegatoError(f"cannot read {path}: {error.strerror}") from error
        if not self.rows:
            raise LegatoError(f"{path} has no step: record some with `legato record {path}` while a fleet runs")

    @property
    def seconds(self) -> float:
        return (self.rows[-1].asked_ns - self.rows[0].asked_ns) / 1e9

    def programs(self) -> list[list[Row]]:
        """Steps of one workflow together; of the others those that go on with each other's answers, which are a conversation; and the rest
        alone. In the order in which they begin."""
        workflows: dict[tuple[str, str], list[Row]] = {}
        talks: dict[str, list[Row]] = {}  # by step
        programs: list[list[Row]] = []
        for row in self.rows:
            if row.workflow:
                rows = workflows.setdefault((row.tenant, row.workflow), [])
            else:
                rows = talks.get(row.quotes.step, []) if row.quotes else []
                talks[row.step] = rows
            if not rows:
                programs.append(rows)
            rows.append(row)
        return programs

    def blocks(self, row: Row) -> list[int]:
        """All full blocks of a step's prompt that are known."""
        parts: list[Sequence[int]] = [row.blocks]
        after = row.after
        while after is not None:
            path = self._paths[after]
            parts.append(path.blocks)
            after = path.after
        return [block for part in reversed(parts) for block in part]

    def _taken(self, row: Row) -> Row:
        """A row that fits to those before; without its blocks where they are kept already. Raises ValueError."""
        if self.rows and row.asked_ns < self.rows[-1].asked_ns:
            raise ValueError("asked_ns is before that of the line above: lines are in the order of asking")
        if row.after is not None and row.after not in self._paths:
            raise ValueError(f"no line above has a prompt that ends with block {row.after}")
        blocks = self.blocks(row)
        if len(blocks) * row.block_tokens > row.prompt_tokens or (blocks and not row.block_tokens):
            raise ValueError(f"{len(blocks)} blocks of {row.block_tokens} tokens are no prompt of {row.prompt_tokens} tokens")
        quote = row.quotes
        if quote is not None:
            if quote.at + quote.blocks > len(blocks) or quote.rest >= row.block_tokens:
                raise ValueError(f"it quotes {quote.blocks} blocks from the {quote.at}th on, with a rest of {quote.rest}, of {len(blocks)}")
            for block in blocks[quote.at : quote.at + quote.blocks]:
                self.quoted.setdefault(block, quote)
        if not row.blocks:
            return row
        if row.blocks[-1] not in self._paths:
            self._paths[row.blocks[-1]] = _Path(row.after, array("q", row.blocks))
        return msgspec.structs.replace(row, after=row.blocks[-1], blocks=[])


_DECODER = msgspec.json.Decoder(Row)


def programs(settings: Recorded, source: Source) -> Iterator[Program]:
    """Steps recorded from a running fleet: times, lengths, workflows and shared beginnings."""
    log = Log(found(source.data, settings.path, ORIGIN))
    tenants = {tenant.name: tenant for tenant in settings.tenants}
    base = source.random("blocks").getrandbits(64)
    groups = log.programs()
    first_ns = log.rows[0].asked_ns

    def program(begins_s: float, again: int, rows: list[Row]) -> Program:
        texts = _Texts(log, source, mixed(base + again), again)
        tenant = tenants.get(rows[0].tenant) or Tenant(name=rows[0].tenant)
        made = source.program(settings, tenant, begins_s, _calls(rows, texts, settings.model))
        return msgspec.structs.replace(made, priority=rows[0].priority, behaviour=_behaviour(tenant, rows))

    played_rows = played(settings, source.seconds, lambda _: (((rows[0].asked_ns - first_ns) / 1e9, rows) for rows in groups))
    return (program(begins_s, again, rows) for begins_s, again, rows in played_rows)


def _behaviour(tenant: Tenant, rows: list[Row]) -> Behaviour:
    """With the recorded time limit; of a workflow the longest, none where a step has none."""
    limits = [row.timeout_ms for row in rows]
    return msgspec.structs.replace(tenant.behaviour, timeout_s=max(limits) / 1e3 if all(limits) else tenant.behaviour.timeout_s)


class _Texts:
    """The contents of prompts and answers, the `again`-th time that the log is played."""

    def __init__(self, log: Log, source: Source, base: int, again: int) -> None:
        self._log = log
        self._source = source
        self._base = base
        self._again = again

    def prompt(self, row: Row) -> tuple[Segment, ...]:
        """Blocks by their hashes, answers that are quoted by whose they are, and what is behind the last full block."""
        blocks, made = self._log.blocks(row), []
        for quote, run in groupby(blocks, self._log.quoted.get):
            if quote is None:
                made += [Segment(self._base ^ (block & MASK), row.block_tokens) for block in run]
            else:
                made += self._answered(quote, sum(1 for _ in run) * row.block_tokens)
        rest = row.prompt_tokens - len(blocks) * row.block_tokens
        return (*made, self._rest(row.step, rest)) if rest else tuple(made)

    def answer(self, step: str, tokens: int) -> Segment:
        """What a step answers: its first tokens."""
        return self._source.shared(f"{self._again}/{step}/answer", tokens)

    def _rest(self, step: str, tokens: int) -> Segment:
        return self._source.shared(f"{self._again}/{step}/rest", tokens)

    def _answered(self, quote: Quote, tokens: int) -> list[Segment]:
        answer = self.answer(quote.step, tokens - quote.rest)
        return [self._rest(quote.step, quote.rest), answer] if quote.rest else [answer]


def _calls(rows: list[Row], texts: _Texts, model: str) -> list[Call]:
    """Each call after those that had ended when it was asked for, as far as they are not before each other."""
    names = {row.step: f"call-{number}" for number, row in enumerate(rows, 1)}
    made = []
    for number, row in enumerate(rows):
        before = _ended(rows[:number], row)
        since_ns = max((each.ended_ns for each in before), default=rows[0].asked_ns)
        made.append(
            Call(
                key=names[row.step],
                prompt=texts.prompt(row),
                output=texts.answer(row.step, row.output_tokens),
                max_tokens=max(row.max_tokens, row.output_tokens),
                after=tuple(names[each.step] for each in before),
                wait_s=max(0, row.asked_ns - since_ns) / 1e9,
                model=model or row.model,
            )
        )
    return made


def _ended(earlier: list[Row], row: Row) -> list[Row]:
    """Those that had ended, without the ones that had ended already when the last of them was asked for."""
    ended = [each for each in earlier if each.ended_ns and each.ended_ns <= row.asked_ns + SLACK_NS]
    if not ended:
        return []
    last_ns = ended[-1].asked_ns
    return [each for each in ended[:-1] if each.ended_ns > last_ns + SLACK_NS] + ended[-1:]
