"""A circuit breaker: what fails again and again is left alone for a while, then tried with single requests.

The state is facts only (when it failed since it last succeeded, when the last request passed); what they mean follows from the
configuration at the time of asking.

Rules:
- Closed: fewer than `failures` failures in a row, or the last `failures` of them spread over more than `window_ms`.
- Open: else, for `cooldown_ms` after the last failure. Nothing passes.
- Half-open: after that, one request passes in every `probe_ms`. A success closes the circuit, a failure opens it again.

Source: Nygard, Release It! (2007), chapter 5. Probes are spaced in time, not counted: one whose outcome is never heard blocks nothing.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

FAILURES_KEPT = 16
_MS = 1_000_000


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When to open and when to try again."""

    failures: Annotated[int, Meta(ge=1, le=FAILURES_KEPT)] = 5  # in a row
    window_ms: Annotated[int, Meta(ge=1)] = 30_000  # within which they must lie
    cooldown_ms: Annotated[int, Meta(ge=0)] = 5_000
    probe_ms: Annotated[int, Meta(ge=1)] = 1_000


class Circuit(StrEnum):
    """What a breaker lets pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(msgspec.Struct, kw_only=True):
    """The facts. Times in Unix nanoseconds."""

    failed_ns: list[int] = []  # since the last success, the newest FAILURES_KEPT
    passed_ns: int = 0  # the last request that was let through


def circuit(breaker: Breaker, now_ns: int, config: BreakerConfig) -> Circuit:
    """The state of the circuit at `now_ns`."""
    times = breaker.failed_ns
    if len(times) < config.failures or times[-1] - times[-config.failures] > config.window_ms * _MS:
        return Circuit.CLOSED
    return Circuit.OPEN if now_ns < times[-1] + config.cooldown_ms * _MS else Circuit.HALF_OPEN


def wait_ns(breaker: Breaker, now_ns: int, config: BreakerConfig) -> int:
    """How long until the next request may pass; 0: now."""
    if circuit(breaker, now_ns, config) is Circuit.CLOSED:
        return 0
    cooled_ns = breaker.failed_ns[-1] + config.cooldown_ms * _MS
    return max(0, cooled_ns - now_ns, breaker.passed_ns + config.probe_ms * _MS - now_ns)


def passed(breaker: Breaker, now_ns: int) -> None:
    """A request was let through."""
    breaker.passed_ns = now_ns


def failed(breaker: Breaker, now_ns: int) -> None:
    """A request failed by no fault of its own."""
    breaker.failed_ns.append(now_ns)
    del breaker.failed_ns[:-FAILURES_KEPT]


def succeeded(breaker: Breaker) -> None:
    """A request succeeded."""
    breaker.failed_ns.clear()
