"""Clients of a thought fleet: programs that ask for their calls, wait for tools, lose patience, and try again."""

import math
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from random import Random

from legato.simulate.bus import Bus
from legato.simulate.scenario import Scenario
from legato.simulate.steps import Step
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.outcomes import Status
from shared.contracts.steps import CancelRequested, Sampling, SubmissionRead
from shared.core.errors import LegatoError
from shared.sim.heap import SECOND_NS
from shared.sim.measured import STATUSES, Measured
from shared.sim.programs import Call, Chain, Program

_INDEX = {status: index for index, status in enumerate(STATUSES)}

VIOLATIONS_MAX = 20
BLOCKS_MAX = 4_000_000  # about 400 MB of memory
BACKOFF_MAX_S = 60.0  # between two tries


def key_of(tenant: str) -> str:
    """The API key of a tenant, as its hash."""
    return f"sha256:{sha256(tenant.encode()).hexdigest()}"


class Seen:
    """Which blocks anybody has asked for before: what a cache without end would hold. At most BLOCKS_MAX, the oldest go first."""

    def __init__(self, block_tokens: int, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks: dict[int, None] = {}
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens

    def missing_tokens(self, chain: Chain, prompt_tokens: int) -> int:
        """Tokens of a prompt that are new, at least one; from now on they are not."""
        blocks = chain.first(prompt_tokens // self._block_tokens)
        known = 0
        while known < len(blocks) and blocks[known] in self._blocks:
            known += 1
        self._add(blocks[known:])
        return max(1, prompt_tokens - known * self._block_tokens)

    def learn(self, chain: Chain, tokens: int) -> None:
        """An answer was given: with it, so many tokens are known."""
        self._add(chain.first(tokens // self._block_tokens))

    def _add(self, blocks: list[int]) -> None:
        self._blocks.update(dict.fromkeys(blocks))
        if len(self._blocks) > self._blocks_max:  # many at a time: a dict finds its first entry slowly when one by one was taken away
            for block in list(islice(self._blocks, self._blocks_max // 8 + 1)):
                del self._blocks[block]


class _Open:
    """A call that was asked for: all of its tries."""

    __slots__ = ("asked_ns", "attempts", "call", "computed_tokens", "gpu_s", "tries", "usd", "wanted_tokens")

    def __init__(self, call: Call, asked_ns: int) -> None:
        self.call = call
        self.asked_ns = asked_ns
        self.tries = 0
        self.attempts = 0
        self.computed_tokens = 0
        self.wanted_tokens = 0
        self.gpu_s = 0.0
        self.usd = 0.0


class Clients:
    """All of them. `begin` each program at its time; `open` counts those that are not over."""

    def __init__(self, bus: Bus, measured: Measured, draw: Random, scenario: Scenario) -> None:
        """Programs that name no model ask for that of the first pool."""
        self.steps: dict[StepId, Step] = {}
        self.open = 0
        self.violations: list[str] = []
        self.tenants: Callable[[str], None] = lambda tenant: None  # told of each tenant before its first step
        self._bus = bus
        self._heap = bus.heap
        self._measured = measured
        self._draw = draw.random
        self._model = next(iter(scenario.pools.values())).model
        self._models = {pool.model for pool in scenario.pools.values()}
        self._block_tokens = scenario.block_tokens
        self._counted_ns = round(scenario.warm_up_s * SECOND_NS)
        self._first_s = (scenario.network.hop_ms + scenario.network.first_ms) / 1e3
        self._seen = Seen(self._block_tokens)

    def begin(self, program: Program) -> None:
        """Now. Raises LegatoError where it asks for a model that no pool serves."""
        for model in dict.fromkeys([program.model, *(call.model for call in program.calls)]):
            if model and model not in self._models:
                raise LegatoError(f"a program asks for the model {model!r}; the pools serve {', '.join(sorted(self._models))}")
        self.tenants(program.tenant)
        _Running(self, program)

    # --- what a running program does through us ----------------------------------------------------------------------------------

    def ask(self, running: "_Running", asked: _Open) -> None:
        """One more try."""
        program, call, now_ns = running.program, asked.call, self._heap.now_ns
        asked.tries += 1
        step = Step(StepId(f"{program.id}-{call.key}-{asked.tries}"), program, call, self._block_tokens)
        step.asked_ns = now_ns
        if asked.tries == 1:
            asked.wanted_tokens = self._seen.missing_tokens(step.chain, call.prompt_tokens)
        step.ended = lambda ended: self._heap.at(heard_ns(self._bus), running.ended, (asked, ended))
        self.steps[step.id] = step
        timeout_s = program.behaviour.timeout_s
        self._bus.publish(
            SubmissionRead(
                step=step.id,
                workflow=WorkflowId(program.id) if len(program.calls) > 1 else WorkflowId(""),
                key=key_of(program.tenant),
                model=call.model or program.model or self._model,
                prompt_tokens=call.prompt_tokens,
                context_tokens=1 << 40,
                sampling=Sampling(max_tokens=call.max_tokens or call.output.tokens),
                priority=program.priority,
                timeout_ms=math.ceil(timeout_s * 1e3) if timeout_s else None,
                step_key=call.key,
            )
        )
        if program.behaviour.patience_s:
            self._heap.after(program.behaviour.patience_s, self._look, step)

    def _look(self, step: Step) -> None:
        if not step.first_ns and step.status is None:
            self._bus.publish(CancelRequested(step=step.id, why="no token in time"))

    def learn(self, step: Step) -> None:
        """What its answer adds to what a cache could hold. The last token's KV is never computed."""
        self._seen.learn(step.chain, step.call.prompt_tokens + step.tokens - 1)

    def wrong(self, text: str) -> None:
        """Something that must hold does not. Of many, the first are told."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    def forget(self, step: Step) -> None:
        """Nobody asks for it any more."""
        self.steps.pop(step.id, None)

    def count(self, index: int, asked: _Open, step: Step) -> None:
        """A row for a call that is over."""
        if asked.asked_ns < self._counted_ns:
            return
        calls = self._measured.calls
        calls.program.append(index)
        calls.asked_s.append(asked.asked_ns / SECOND_NS)
        calls.first_s.append(self.heard_s(step) if step.first_ns else math.nan)
        calls.ended_s.append(self._heap.now_s)
        calls.status.append(_INDEX[step.status or Status.FAILED])
        calls.prompt_tokens.append(asked.call.prompt_tokens)
        calls.output_tokens.append(step.tokens)
        calls.cached_tokens.append(step.cached_tokens)
        calls.computed_tokens.append(asked.computed_tokens)
        calls.wanted_tokens.append(asked.wanted_tokens)
        calls.attempts.append(asked.attempts)
        calls.tries.append(asked.tries)
        calls.longest_gap_s.append(step.gap_ns / SECOND_NS)
        calls.gpu_s.append(asked.gpu_s)
        calls.usd.append(asked.usd)

    def heard_s(self, step: Step) -> float:
        """When its reader has its first token, but not after its end."""
        return min(step.first_ns / SECOND_NS + self._first_s, self._heap.now_s)

    def wait_s(self, program: Program, step: Step, tries: int) -> float:
        """Until the next try."""
        behaviour = program.behaviour
        told_s = (step.problem.retry_after_ms if step.problem else 0) / 1e3
        if behaviour.rude:
            wait_s = behaviour.retry_s
        else:
            wait_s = max(behaviour.retry_s, told_s, min(BACKOFF_MAX_S, behaviour.retry_s * 2.0 ** (tries - 1)))
        return wait_s * (1 + self._draw() / 2)

    def row(self, program: Program) -> int:
        """A program's row."""
        programs = self._measured.programs
        for name, names, column in (
            (program.kind, programs.kinds, programs.kind),
            (program.tenant, programs.tenants, programs.tenant),
        ):
            if name not in names:
                names.append(name)
            column.append(names.index(name))
        programs.begun_s.append(self._heap.now_s)
        programs.ended_s.append(math.nan)
        programs.succeeded.append(0)
        programs.well.append(0)
        return len(programs) - 1

    def over(self, index: int, succeeded: bool, well: bool) -> None:
        """A program has ended."""
        programs = self._measured.programs
        programs.ended_s[index] = self._heap.now_s
        programs.succeeded[index] = succeeded
        programs.well[index] = well
        self.open -= 1

    def later(self, wait_s: float, act: Callable[[_Open], None], asked: _Open) -> None:
        self._heap.after(wait_s, act, asked)

    def now_ns(self) -> int:
        return self._heap.now_ns


def heard_ns(bus: Bus) -> int:
    """When a reader has what is written now."""
    return bus.heap.now_ns + bus.hop_ns()


class _Running:
    """One program from its beginning to its end."""

    def __init__(self, clients: Clients, program: Program) -> None:
        self.program = program
        self._clients = clients
        self._index = clients.row(program)
        self._begun_ns = clients.now_ns()
        self._missing = {call.key: len(call.after) for call in program.calls if call.after}
        self._next: dict[str, list[Call]] = {}
        self._left = len(program.calls)
        self._asked = 0  # that are not over
        self._well = True
        self._failed = False
        clients.open += 1
        for call in program.calls:
            for before in call.after:
                self._next.setdefault(before, []).append(call)
        for call in program.calls:
            if not call.after:
                self._plan(call)

    def _plan(self, call: Call) -> None:
        self._asked += 1
        self._clients.later(call.wait_s, self._ask, _Open(call, self._clients.now_ns() + round(call.wait_s * SECOND_NS)))

    def _ask(self, asked: _Open) -> None:
        if self._failed and asked.tries == 0:
            self._close()
        else:
            self._clients.ask(self, asked)

    def ended(self, what: tuple[_Open, Step]) -> None:
        """A try has ended, and its reader knows."""
        asked, step = what
        self._clients.forget(step)
        asked.attempts += step.attempts
        asked.computed_tokens += step.computed_tokens
        asked.gpu_s += step.gpu_s
        asked.usd += step.usd
        succeeded = step.status is Status.SUCCEEDED
        if succeeded and step.tokens != step.wanted:
            self._clients.wrong(f"{step.id} succeeded with {step.tokens} tokens, and should have {step.wanted}")
        if not succeeded and asked.tries < self.program.behaviour.tries and not self._failed:
            self._clients.later(self._clients.wait_s(self.program, step, asked.tries), self._ask, asked)
            return
        self._clients.count(self._index, asked, step)
        self._well = self._well and succeeded and self._met(asked, step)
        if succeeded:
            self._left -= 1
            self._clients.learn(step)
            self._follow(asked.call.key)
        else:
            self._failed = True
        self._close()

    def _follow(self, key: str) -> None:
        for call in self._next.get(key, ()):
            self._missing[call.key] -= 1
            if not self._missing[call.key]:
                self._plan(call)

    def _close(self) -> None:
        """One that was asked for, or was to be, is over."""
        self._asked -= 1
        if not self._asked:
            goal_s = self.program.objective.program_s
            in_time = not goal_s or self._clients.now_ns() - self._begun_ns <= goal_s * SECOND_NS
            succeeded = not self._left and not self._failed
            self._clients.over(self._index, succeeded, succeeded and self._well and in_time)

    def _met(self, asked: _Open, step: Step) -> bool:
        goal = self.program.objective
        ttft_s = self._clients.heard_s(step) - asked.asked_ns / SECOND_NS
        itl_s = (step.last_ns - step.first_ns) / SECOND_NS / max(1, step.tokens - 1)
        call_s = (self._clients.now_ns() - asked.asked_ns) / SECOND_NS
        pairs = ((ttft_s, goal.ttft_s), (itl_s, goal.itl_s), (call_s, goal.call_s))
        return all(not most or took <= most for took, most in pairs)
