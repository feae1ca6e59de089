"""How many requests may be inside at once, and none once the gateway stops."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.contracts.outcomes import Problem, Reason


class Gate:
    """`draining`: new requests are sent away."""

    def __init__(self, requests_max: int) -> None:
        self.draining = False
        self._requests_max = requests_max
        self._inside = 0

    @property
    def closed(self) -> Problem | None:
        """Why nobody else may enter now."""
        if not self.draining and self._inside < self._requests_max:
            return None
        why = "is shutting down" if self.draining else f"has {self._inside} requests in flight, its limit"
        return Problem(reason=Reason.NO_CAPACITY, message=f"this gateway {why}; try again")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """For as long as one request takes."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
