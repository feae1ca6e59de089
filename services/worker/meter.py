"""Whose time the engine's time is: each attempt pays its share of every moment, in equal parts among those that run.

One number grows by dt / n while n attempts run (the virtual time of generalised processor sharing: Demers, Keshav and Shenker, 1989); an
attempt's share is how much it grew meanwhile. So shares add up to the time in which the engine was busy, at a constant cost per attempt.
Pure: the caller gives the time.
"""


class Meter:
    """Seconds throughout. Invariant: `running` is never negative."""

    def __init__(self) -> None:
        self._virtual = 0.0
        self._last = 0.0
        self.running = 0

    def enter(self, now: float) -> float:
        """An attempt begins; give its mark to `share` and `leave`."""
        self._advance(now)
        self.running += 1
        return self._virtual

    def share(self, mark: float, now: float) -> float:
        """What it has used so far."""
        self._advance(now)
        return self._virtual - mark

    def leave(self, mark: float, now: float) -> float:
        """It has ended; what it used in all."""
        share = self.share(mark, now)
        self.running -= 1
        if self.running < 0:
            raise AssertionError("an attempt left that had not entered")
        return share

    def _advance(self, now: float) -> None:
        if self.running:
            self._virtual += max(0.0, now - self._last) / self.running
        self._last = max(now, self._last)
