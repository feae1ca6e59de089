"""Order "edf": earliest deadline first.

Rule: whoever must have ended first; steps without a deadline go last. Among equals, first come first served.
Inputs: deadline, number of arrival. Constants: none.
Source: Liu and Layland, "Scheduling algorithms for multiprogramming in a hard-real-time environment", Journal of the ACM, 1973.
"""

NEVER = 2**63 - 1


def place(deadline_ns: int, arrival: int) -> tuple[int, int]:
    """Sorts ascending. `deadline_ns`: 0 where there is none."""
    return (deadline_ns or NEVER, arrival)
