"""The circuit breaker: worked examples with the times written out."""

import msgspec

from shared.core import breaker
from shared.core.breaker import Breaker, BreakerConfig, Circuit

MS = 1_000_000
NOW = 1_700_000_000_000 * MS
CONFIG = BreakerConfig(failures=3, window_ms=10_000, cooldown_ms=5_000, probe_ms=1_000)


def tripped(at_ns: int = NOW) -> Breaker:
    subject = Breaker()
    for _ in range(3):
        breaker.failed(subject, at_ns)
    return subject


def test_a_new_circuit_is_closed_and_lets_everything_pass() -> None:
    assert breaker.circuit(Breaker(), NOW, CONFIG) is Circuit.CLOSED
    assert breaker.wait_ns(Breaker(), NOW, CONFIG) == 0


def test_it_opens_with_the_last_of_so_many_failures_in_a_row() -> None:
    subject = Breaker()
    breaker.failed(subject, NOW)
    breaker.failed(subject, NOW)
    assert breaker.circuit(subject, NOW, CONFIG) is Circuit.CLOSED
    breaker.failed(subject, NOW)
    assert breaker.circuit(subject, NOW, CONFIG) is Circuit.OPEN
    assert breaker.wait_ns(subject, NOW, CONFIG) == 5_000 * MS


def test_a_success_in_between_starts_the_count_again() -> None:
    subject = Breaker()
    for _ in range(10):
        breaker.failed(subject, NOW)
        breaker.failed(subject, NOW)
        breaker.succeeded(subject)
    assert breaker.circuit(subject, NOW, CONFIG) is Circuit.CLOSED


def test_failures_far_apart_do_not_open_it() -> None:
    subject = Breaker()
    for index in range(20):
        breaker.failed(subject, NOW + index * 6_000 * MS)
        assert breaker.circuit(subject, NOW + index * 6_000 * MS, CONFIG) is Circuit.CLOSED


def test_after_the_cool_down_one_request_passes_per_probe_interval() -> None:
    subject = tripped()
    cooled = NOW + 5_000 * MS
    assert breaker.circuit(subject, cooled - 1, CONFIG) is Circuit.OPEN
    assert breaker.circuit(subject, cooled, CONFIG) is Circuit.HALF_OPEN
    assert breaker.wait_ns(subject, cooled, CONFIG) == 0
    breaker.passed(subject, cooled)
    assert breaker.wait_ns(subject, cooled + 400 * MS, CONFIG) == 600 * MS
    assert breaker.wait_ns(subject, cooled + 1_000 * MS, CONFIG) == 0


def test_a_probe_that_succeeds_closes_it() -> None:
    subject = tripped()
    breaker.succeeded(subject)
    assert breaker.circuit(subject, NOW, CONFIG) is Circuit.CLOSED


def test_a_probe_that_fails_opens_it_for_another_cool_down() -> None:
    subject = tripped()
    later = NOW + 6_000 * MS
    breaker.failed(subject, later)
    assert breaker.circuit(subject, later, CONFIG) is Circuit.OPEN
    assert breaker.wait_ns(subject, later, CONFIG) == 5_000 * MS


def test_a_probe_that_is_never_heard_of_does_not_block_the_next() -> None:
    subject = tripped()
    for second in range(5, 65):
        at = NOW + second * 1_000 * MS
        assert breaker.wait_ns(subject, at, CONFIG) == 0
        breaker.passed(subject, at)


def test_it_remembers_no_more_failures_than_it_needs() -> None:
    subject = Breaker()
    for index in range(1_000):
        breaker.failed(subject, NOW + index)
    assert len(subject.failed_ns) == breaker.FAILURES_KEPT


def test_it_survives_a_snapshot() -> None:
    subject = tripped()
    assert msgspec.json.decode(msgspec.json.encode(subject), type=Breaker) == subject
