"""The clock of the live world. Decisions never read it: the time is an input that their driver gives them."""

import time


def now_ns() -> int:
    """Unix time in nanoseconds. It can jump; measure intervals with time.monotonic."""
    return time.time_ns()
