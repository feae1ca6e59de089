"""New ids: UUIDv7 strings (RFC 9562), which sort by time, and W3C trace contexts (Trace Context, level 1)."""

import os
import re
import threading
from collections.abc import Callable

import msgspec

from shared.runtime.clock import now_ns

COUNTER_BITS = 74  # what version and variant leave of 128 bits after 48 bits of milliseconds
STEP_BITS = 32  # consecutive ids of one millisecond differ by a random part of this size, so that none can be guessed from another

TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 0x01


class _Uuid7:
    """RFC 9562, 5.7 with 6.2 method 2: the random part counts up within a millisecond, so ids of a process are in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Forget the ids made so far."""
        self._ms = 0
        self._counter = 0

    def __call__(self) -> str:
        with self._lock:
            ms = now_ns() // 1_000_000
            if ms > self._ms:
                self._ms, self._counter = ms, _random(COUNTER_BITS - 1)  # the upper half is room to count
            else:  # the same millisecond, or the clock was set back
                self._counter += 1 + _random(STEP_BITS)
                if self._counter >> COUNTER_BITS:
                    self._ms, self._counter = self._ms + 1, _random(COUNTER_BITS - 1)
            high, low = self._counter >> 62, self._counter & (2**62 - 1)
            digits = f"{self._ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_entropy: Callable[[int], bytes] = os.urandom

new_id = _Uuid7()
"""A new UUIDv7. Later ids of one process are greater, as strings too; between processes they sort by the millisecond."""


def time_ms_of(uuid7: str) -> int:
    """When an id was made: Unix time in milliseconds."""
    return int(uuid7.replace("-", "")[:12], 16)


class TraceContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where in which trace we are: 32 and 16 lower-case hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def __str__(self) -> str:
        """As the traceparent header has it."""
        return f"00-{self.trace_id}-{self.span_id}-{SAMPLED if self.sampled else 0:02x}"

    def child(self) -> "TraceContext":
        """A new span of the same trace."""
        return msgspec.structs.replace(self, span_id=_nonzero_hex(8))


def new_trace(*, sampled: bool = True) -> TraceContext:
    """The root of a new trace."""
    return TraceContext(trace_id=_nonzero_hex(16), span_id=_nonzero_hex(8), sampled=sampled)


def parse_traceparent(text: str) -> TraceContext | None:
    """None if it is not valid: then a receiver starts a new trace, says the standard. Later versions are read as far as known."""
    match = TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id=trace_id, span_id=span_id, sampled=bool(int(flags, 16) & SAMPLED))


def use(entropy: Callable[[int], bytes] = os.urandom) -> None:
    """Make ids of other bytes from now on, in the whole process: for a simulation, which must repeat. Without an argument, random ones."""
    global _entropy
    _entropy = entropy
    new_id.restart()


def _random(bits: int) -> int:
    return int.from_bytes(_entropy((bits + 7) // 8)) & ((1 << bits) - 1)


def _nonzero_hex(size: int) -> str:
    number = 0
    while number == 0:
        number = _random(size * 8)
    return f"{number:0{size * 2}x}"
