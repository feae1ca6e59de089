"""What clients ask for, as a world plays it: programs of calls. Pure; token values do not matter, only which contents are the same.

A prompt is a row of segments. A segment is a content (any integer: the same number is the same text) of so many tokens; a block of KV is
known by the chained hash of what it covers and all before it, as in an engine. So a conversation that grows, a system prompt that is
shared, and a call that quotes an earlier answer are all said by repeating segments.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

MASK = 0xFFFFFFFFFFFFFFFF


class Segment(NamedTuple):
    """`tokens` tokens of one content, from its beginning."""

    content: int
    tokens: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a program. `output` is what the model will say: the engine knows it, no service does. It is asked for `wait_s` after
    all of `after` (keys of calls of the same program) have succeeded: the time of a tool, or of a person; the first ones `wait_s` after the
    program's beginning."""

    key: str
    prompt: tuple[Segment, ...]
    output: Segment
    max_tokens: int = 0  # what the client says; 0: exactly the output
    after: tuple[str, ...] = ()
    wait_s: float = 0.0
    model: str = ""  # empty: the program's

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.prompt)


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a client takes a no, and how long it waits. `tries`: of each call; after a refusal or a failure the next one comes when
    the answer says (`retry_after_ms`), at least `retry_s` later, twice that after the second, and so on up to a minute, with up to half as
    much more; a rude client always waits `retry_s`."""

    patience_s: float = 0.0  # without a first token it cancels, and tries again; 0: it waits for ever
    timeout_s: float = 0.0  # from asking to the end, as sent to admission; 0: the fleet's default
    tries: Annotated[int, Meta(ge=1, le=1_000)] = 1
    retry_s: float = 1.0
    rude: bool = False


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as served well: all that is not 0 must hold. Per call, the last for the whole program."""

    ttft_s: float = 0.0
    itl_s: float = 0.0  # mean time between two tokens of a call
    call_s: float = 0.0
    program_s: float = 0.0


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, a session, or a single request. It succeeds when all its calls do. Calls come after those that they name."""

    id: str  # unique in the workload; a subject token
    kind: str  # `chat`, `coding-agent`, …: what reports group by
    begins_s: float
    calls: tuple[Call, ...]
    tenant: str = "default"
    model: str = ""  # empty: the scenario's
    priority: int = 0
    behaviour: Behaviour = Behaviour()
    objective: Objective = Objective()


class Chain:
    """Block hashes of a call's prompt and output (kv_cache.Chain): the n-th full block of `block_tokens` tokens, made when asked for."""

    __slots__ = ("_at", "_digest", "_inside", "_segments", "_width", "hashes")

    def __init__(self, segments: Sequence[Segment], block_tokens: int) -> None:
        self.hashes: list[int] = []
        self._segments = segments
        self._width = block_tokens
        self._at = 0  # the segment that the next block begins in
        self._inside = 0  # how many of its tokens come before
        self._digest = 0

    def __getitem__(self, index: int, /) -> int:
        while index >= len(self.hashes):
            self._next()
        return self.hashes[index]

    def first(self, blocks: int) -> list[int]:
        """The first `blocks` hashes."""
        if blocks:
            self[blocks - 1]
        return self.hashes[:blocks]

    def _next(self) -> None:
        """One more block. Raises IndexError behind the last full one. Python hashes tuples of integers alike in each process (since 3.8),
        in a tenth of the time that arithmetic takes: chains were half of what a simulated engine cost."""
        left, digest = self._width, self._digest
        while left:
            content, tokens = self._segments[self._at]
            inside = self._inside
            taken = min(left, tokens - inside)
            digest = hash((digest, content, inside, taken))
            left -= taken
            if inside + taken == tokens:
                self._at, self._inside = self._at + 1, 0
            else:
                self._inside = inside + taken
        self._digest = digest
        self.hashes.append(digest)


def mixed(value: int) -> int:
    """64 bits to 64 bits, one to one, each bit of the result depending on all of them (SplitMix64's finaliser; Steele et al., OOPSLA
    2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
