"""How long a reader waits for a step of which it hears nothing. Pure: the caller has the clock.

The fleet ends every step at its deadline, so a step that is silent past its own time limit has nobody who works on it, or nobody who
says so. The deadline counts from the admission, a moment after the submission; `grace_s` is for that, and for the end to arrive.
"""

import math


class Silence:
    """The limits of one step's reader. Times in seconds, of any one clock that does not go back."""

    def __init__(self, now_s: float, timeout_s: float | None, *, grace_s: float, unnamed_s: float, overall_s: float = math.inf) -> None:
        """`timeout_s`: what the step itself may take from now on; it is given up after that, once `grace_s` was silent. None: the reader
        does not know; then `unnamed_s` of silence end it, or `overall_s` from now on."""
        self._began_s = self._heard_s = now_s
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._unnamed_s = unnamed_s
        self._overall_s = overall_s

    def heard(self, now_s: float) -> None:
        """Something came, or the reader begins to listen only now."""
        self._heard_s = now_s

    def left_s(self, now_s: float) -> float:
        """Until the step is to be given up; not above 0: now."""
        if self._timeout_s is not None:
            return max(self._began_s + self._timeout_s, self._heard_s) + self._grace_s - now_s
        return min(self._began_s + self._overall_s, self._heard_s + self._unnamed_s) - now_s
