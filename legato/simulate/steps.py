"""One try of a call, as its reader sees it, whoever works on it."""

from collections.abc import Callable

from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Status
from shared.sim.programs import Call, Chain, Program


class Step:
    """`tokens`: of the output, stored for its reader; the next attempt goes on behind them. Times of the world's clock, 0: not yet."""

    __slots__ = (
        "asked_ns",
        "attempt",
        "attempts",
        "cached_tokens",
        "call",
        "chain",
        "computed_tokens",
        "ended",
        "first_ns",
        "gap_ns",
        "gpu_s",
        "id",
        "last_ns",
        "problem",
        "program",
        "status",
        "tokens",
        "usd",
    )

    def __init__(self, step: StepId, program: Program, call: Call, block_tokens: int) -> None:
        self.id = step
        self.program = program
        self.call = call
        self.chain = Chain((*call.prompt, call.output), block_tokens)
        self.asked_ns = 0
        self.first_ns = 0
        self.last_ns = 0
        self.gap_ns = 0  # the longest between two tokens
        self.tokens = 0
        self.attempt = 0  # the highest that has written: it fences those below
        self.attempts = 0
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.gpu_s = 0.0
        self.usd = 0.0
        self.status: Status | None = None
        self.problem: Problem | None = None
        self.ended: Callable[[Step], None] | None = None  # who waits for the end

    @property
    def wanted(self) -> int:
        """Tokens that it ends with."""
        return min(self.call.output.tokens, self.call.max_tokens or self.call.output.tokens)

    def write(self, attempt: int, offset: int, tokens: int, times_ns: tuple[int, int]) -> bool:
        """`tokens` more behind the first `offset`; when the first and the last of them were there. False: another attempt has written
        since this one began, and goes on."""
        if attempt < self.attempt or offset != self.tokens or self.status is not None:
            return False
        first_ns, last_ns = times_ns
        self.attempt = attempt
        if self.first_ns:
            self.gap_ns = max(self.gap_ns, first_ns - self.last_ns)
        else:
            self.first_ns = first_ns
        if tokens > 1:
            self.gap_ns = max(self.gap_ns, (last_ns - first_ns) // (tokens - 1))
        self.last_ns = last_ns
        self.tokens += tokens
        return True

    def end(self, status: Status, problem: Problem | None) -> None:
        """The first end is the one that its reader sees."""
        if self.status is None:
            self.status, self.problem = status, problem
            if self.ended is not None:
                self.ended(self)
