"""What clients asked of a running fleet, from the journals of admission and of the KV registry: rows for shared/sim/workloads/recorded.py.

Admission's journal has each submission with its lengths and what became of it, the registry's has the block hashes of its prompt and what
engines have stored. A block of a prompt that an engine had stored before any prompt had it was an answer: that is how the answers that a
conversation goes on with are found, without a text.
"""

import statistics
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from services.kv_registry.state import PromptSeen
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.kv import BlocksStored, KvChanged, KvSnapshot
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, Job, StepAdmitted, StepClosed, StepRefused, StepSettled, SubmissionRead
from shared.core.errors import LegatoError
from shared.sim.programs import MASK, mixed
from shared.sim.workloads.recorded import Quote, Row

# A refusal for one of these is the fleet's: another fleet might have taken the step. All others are the caller's fault.
FOR_WANT = (
    Reason.RATE_LIMITED,
    Reason.DEADLINE_UNREACHABLE,
    Reason.QUEUE_FULL,
    Reason.BUDGET_SPENT,
    Reason.NO_CAPACITY,
    Reason.CIRCUIT_OPEN,
)
ENDS_KEPT = 16  # steps whose prompts end with the same block, of which one may have been quoted


class Asked(msgspec.Struct, kw_only=True):
    """One submission, and what became of it."""

    read: SubmissionRead
    asked_ns: int
    tenant: str = ""
    job: Job | None = None
    ended_ns: int = 0
    status: Status | None = None
    reason: Reason | None = None
    usage: Usage = Usage()
    tries: int = 1

    @property
    def answered(self) -> int | None:
        """Tokens of its whole answer; None: nobody knows. One that was cancelled had as much as its reader wanted."""
        whole = self.status in (Status.SUCCEEDED, Status.CANCELLED) and self.usage.output_tokens
        return self.usage.output_tokens if whole else None

    def end(self, status: Status, problem: Problem | None, now_ns: int) -> None:
        """The first end is the one that its reader sees."""
        if self.status is None:
            self.status, self.reason, self.ended_ns = status, problem.reason if problem else None, now_ns


class Submissions:
    """Folds admission's journal. `steps`: those asked for in the time, in that order."""

    def __init__(self, since_ns: int, until_ns: int) -> None:
        self.steps: dict[StepId, Asked] = {}
        self._since_ns = since_ns
        self._until_ns = until_ns

    def take(self, event: Message, decided: Iterable[Message], now_ns: int) -> None:
        """One entry."""
        if isinstance(event, SubmissionRead) and self._since_ns <= now_ns <= self._until_ns:
            self.steps.setdefault(event.step, Asked(read=event, asked_ns=now_ns))
        for message in (event, *decided):
            step = self.steps.get(message.step)
            if step is not None:
                _learn(step, message, now_ns)


def _learn(step: Asked, message: Message, now_ns: int) -> None:
    match message:
        case StepAdmitted():
            step.tenant, step.job = message.tenant, message.job
        case StepRefused() if step.job is None:
            step.tenant = message.tenant
            step.end(Status.REFUSED, message.problem, now_ns)
        case AttemptEnded() if message.status is not Status.FAILED:  # else another attempt follows, or a StepClosed
            step.usage = message.usage
            step.end(message.status, message.problem, now_ns)
        case StepClosed():
            step.end(message.status, message.problem, now_ns)
        case StepSettled():
            step.usage = message.usage
            step.end(message.status, message.problem, now_ns)


class Known(NamedTuple):
    """A step's prompt: its last block, and the answer that it goes on with."""

    last: int | None
    block_tokens: int
    model: str
    quotes: Quote | None


class _Path(NamedTuple):
    after: int | None
    blocks: "array[int]"


class Prompts:
    """Folds the registry's journal. Some 150 bytes for each block that any prompt or engine has had."""

    def __init__(self, steps: dict[StepId, Asked]) -> None:
        self.known: dict[StepId, Known] = {}
        self.paths: dict[int, _Path] = {}  # by their last block
        self._steps = steps
        self._prompted: set[int] = set()
        self._stored: set[int] = set()  # before any prompt had them
        self._ends: dict[int | None, deque[StepId]] = {}  # whose prompts end with that block

    def take(self, event: Message) -> None:
        """One entry's input."""
        match event:
            case PromptSeen():
                self._seen(event)
            case KvChanged():
                for each in event.events:
                    if isinstance(each, BlocksStored):
                        self._stored.update(block for block in each.hashes if block not in self._prompted)
            case KvSnapshot():
                self._stored.update(block for block in event.hashes if block not in self._prompted)

    def _seen(self, event: PromptSeen) -> None:
        last = event.blocks[-1] if event.blocks else event.after
        if event.step in self._steps and event.step not in self.known:  # the registry of each cell sees all prompts
            self.known[event.step] = Known(last, event.block_tokens, event.model, self._quote(event))
        if event.blocks:
            self.paths.setdefault(event.blocks[-1], _Path(event.after, array("q", event.blocks)))
            self._prompted.update(event.blocks)
        self._ends.setdefault(last, deque(maxlen=ENDS_KEPT)).append(event.step)

    def _quote(self, event: PromptSeen) -> Quote | None:
        """Which earlier answer the prompt goes on with."""
        blocks = event.blocks
        first = next((index for index, block in enumerate(blocks) if block not in self._prompted), len(blocks))
        stored = next((index for index in range(first, len(blocks)) if blocks[index] not in self._stored), len(blocks)) - first
        before = blocks[first - 1] if first else event.after
        best = max((self._fit(step, event, stored) for step in self._ends.get(before, ())), default=None) if stored else None
        if best is None or not best[0]:
            return None
        step = self._steps[best[-1]]
        at, rest = divmod(step.read.prompt_tokens, event.block_tokens)
        return Quote(step=step.read.step, at=at, blocks=best[0], rest=rest)

    def _fit(self, step: StepId, event: PromptSeen, stored: int) -> tuple[int, bool, int, StepId]:
        """How well that step's answer fits to so many blocks: the more of them the better, then of the same workflow, then the latest. The
        KV of an answer's last token is never computed."""
        asked = self._steps.get(step)
        if asked is None or not asked.answered or asked.tenant != self._steps[event.step].tenant:
            return 0, False, 0, step
        prompt, width = asked.read.prompt_tokens, event.block_tokens
        sealed = (prompt + asked.answered - 1) // width - prompt // width
        same = bool(event.workflow) and asked.read.workflow == event.workflow
        return min(stored, sealed), same, asked.asked_ns, step


class Recording(NamedTuple):
    """Rows in the order of asking, and what is to be said of them."""

    rows: list[Row]
    notes: list[str]


def recording(steps: dict[StepId, Asked], prompts: Prompts) -> Recording:
    """What both journals say. Raises LegatoError where nothing is left to ask again."""
    answered = {name: step for name, step in steps.items() if step.job or step.status is Status.REFUSED}
    asked = {name: step for name, step in answered.items() if _askable(step)}
    kept = _tried_once(asked)
    notes = []
    if len(answered) < len(steps):
        notes.append(f"{len(steps) - len(answered)} submissions left out: they were copies, or admission had not answered them yet")
    if len(asked) < len(answered):
        count = Counter(str(step.reason) for step in answered.values() if not _askable(step))
        reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(count.items()))
        notes.append(f"{len(answered) - len(asked)} steps left out, which no other fleet would have served either: {reasons}")
    if len(kept) < len(asked):
        notes.append(f"{len(asked) - len(kept)} were tries of a workflow's step that was tried again later: those are one")
    if not kept:
        raise LegatoError("; ".join(["there is no step of that time that can be asked again", *notes]))
    lengths = _Lengths(kept)
    writer = _Writer(prompts, set(kept))
    rows = [writer.row(step, lengths) for step in sorted(kept.values(), key=lambda step: (step.asked_ns, step.read.step))]
    return Recording(rows, notes + _lacks(rows, writer.begun_before))


def _lacks(rows: list[Row], begun_before: int) -> list[str]:
    guessed, textless = sum(row.guessed for row in rows), [row for row in rows if not row.block_tokens]
    refused, still = sum(row.status == Status.REFUSED for row in textless), sum(not row.ended_ns for row in rows)
    found = []
    if guessed:
        found.append(f"{guessed} have no whole answer: its length is the middle one of others of their tenant and model (`guessed`)")
    if still:
        found.append(f"{still} have no end in the journal")
    if textless:
        of_them = f", {refused} of them because they were refused" if refused else ""
        found.append(f"{len(textless)} have no prompt in the registry's journal{of_them}: each is a text of its own")
    if begun_before:
        found.append(f"{begun_before} go on from prompts that are no longer in the journal: they share those as a whole, or not at all")
    return found


def _askable(step: Asked) -> bool:
    """Whether another fleet might have served it."""
    return step.read.prompt_tokens > 0 and (step.status is not Status.REFUSED or step.reason in FOR_WANT)


def _tried_once(steps: dict[StepId, Asked]) -> dict[StepId, Asked]:
    """With all tries of a workflow's named step as one: the last of them, asked for when the first was."""
    kept: dict[StepId, Asked] = {}
    last: dict[tuple[str, str, str], StepId] = {}
    for name, step in steps.items():
        if step.read.workflow and step.read.step_key:
            place = (step.tenant, step.read.workflow, step.read.step_key)
            before = kept.pop(last[place]) if place in last else None
            if before is not None:
                step = msgspec.structs.replace(step, asked_ns=before.asked_ns, tries=before.tries + 1)
            last[place] = name
        kept[name] = step
    return kept


class _Lengths:
    """The middle length of answers, by tenant and model."""

    def __init__(self, steps: dict[StepId, Asked]) -> None:
        self._of: dict[tuple[str, str], list[int]] = {}
        for step in steps.values():
            if step.answered:
                self._of.setdefault((step.tenant, step.read.model), []).append(step.answered)
        self._all = [length for lengths in self._of.values() for length in lengths]

    def guess(self, step: Asked, most: int) -> int:
        """For one whose answer nobody knows: no less than it had, no more than it may have."""
        lengths = self._of.get((step.tenant, step.read.model)) or self._all
        length = max(1, step.usage.output_tokens, round(statistics.median(lengths)) if lengths else most)
        return min(length, most) if most else length


class _Writer:
    """Rows one after the other, of each prompt what no row before has."""

    def __init__(self, prompts: Prompts, kept: set[StepId]) -> None:
        self.begun_before = 0  # rows whose prompts begin with one that is not in the journal
        self._prompts = prompts
        self._kept = kept
        self._written: set[int] = set()

    def row(self, step: Asked, lengths: _Lengths) -> Row:
        """The next one, in the order of asking."""
        read = step.read
        most = step.job.max_tokens if step.job else read.sampling.max_tokens or 0
        known = self._prompts.known.get(read.step)
        after, blocks = self._new(known, read.prompt_tokens) if known else (None, [])
        quote = known.quotes if known and known.quotes and known.quotes.step in self._kept else None
        return Row(
            step=read.step,
            asked_ns=step.asked_ns,
            ended_ns=step.ended_ns,
            tenant=step.tenant or "default",
            workflow=read.workflow,
            model=known.model if known else read.model,
            priority=read.priority,
            timeout_ms=read.timeout_ms or 0,
            prompt_tokens=read.prompt_tokens,
            max_tokens=most,
            output_tokens=step.answered or lengths.guess(step, most),
            guessed=not step.answered,
            cached_tokens=step.usage.cached_tokens,
            status=step.status or "",
            reason=step.reason or "",
            tries=step.tries,
            block_tokens=known.block_tokens if known else 0,
            after=after,
            blocks=blocks,
            quotes=quote,
        )

    def _new(self, known: Known, prompt_tokens: int) -> tuple[int | None, list[int]]:
        """The last block of the longest path that is written, and what is behind it."""
        parts: list[Sequence[int]] = []
        last = known.last
        while last is not None and last not in self._written and last in self._prompts.paths:
            path = self._prompts.paths[last]
            parts.append(path.blocks)
            last = path.after
        blocks = [block for part in reversed(parts) for block in part]
        if last is not None and last not in self._written:
            lost = max(1, prompt_tokens // known.block_tokens - len(blocks))  # by its last one there was one
            blocks = [*_lost(last, lost), *blocks]
            self.begun_before += 1
            last = None
        if blocks:
            self._written.add(blocks[-1])
        return last, blocks


def _lost(last: int, count: int) -> list[int]:
    """In place of the blocks of a path that nobody knows but by its last one: the same for all who begin with it."""
    return [mixed((last & MASK) + index) - 2**63 for index in range(1, count)] + [last]
