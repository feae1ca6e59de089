"""Token buckets, each kept as one number: the time at which the bucket will be full again.

A bucket of `per_minute` units holds that many when full and refills evenly within PERIOD_NS. What is taken is counted in the time that it
takes to flow back, so the number means the same under any limit: the state keeps what was used, the configuration says what is allowed, and
a changed limit holds from the next decision on. A limit of 0 means none.

Source: the generic cell rate algorithm in its virtual scheduling form, ITU-T I.371 (2004), annex A; equal to a token bucket.
"""

PERIOD_NS = 60_000_000_000


def cost_ns(units: int, per_minute: int) -> int:
    """How long `units` take to flow back. Rounded down, so that a full bucket gives all its units."""
    return units * PERIOD_NS // per_minute if per_minute else 0


def wait_ns(full_ns: int, cost: int, now_ns: int) -> int | None:
    """How long until `cost` may be taken: 0 now, None never, because the whole bucket is smaller."""
    if cost > PERIOD_NS:
        return None
    return max(0, max(full_ns, now_ns) + cost - PERIOD_NS - now_ns)


def taken(full_ns: int, cost: int, now_ns: int) -> int:
    """The bucket after taking `cost`. Never below empty, even when more is taken than `wait_ns` allowed."""
    return min(max(full_ns, now_ns) + cost, now_ns + PERIOD_NS)


def returned(full_ns: int, cost: int) -> int:
    """The bucket after giving `cost` back."""
    return full_ns - cost


def level(full_ns: int, now_ns: int) -> float:
    """How full the bucket is, from 0 to 1."""
    return 1 - min(PERIOD_NS, max(0, full_ns - now_ns)) / PERIOD_NS
