"""For how long a pool's workers keep the KV of a program whose tool runs: a fixed time, or what is worth it by what they have seen.

The second is Continuum's rule (shared/core/time_to_live.py), fed with the pauses between the steps of programs, how many steps programs
had, and how long steps waited whose KV was gone. Here a tool has no name, so all pauses are of one kind. The newest SEEN_MAX of each count.
"""

from collections import OrderedDict, deque
from statistics import fmean

from shared.contracts.ids import WorkflowId
from shared.contracts.steps import StepDispatched
from shared.core.time_to_live import benefit_s, keep_s, memoryfulness

SEEN_MAX = 1_000
PROGRAMS_MAX = 20_000  # between two steps
LEARN_S = 60.0  # between two looks at all that was seen


class Keeping:
    """Of one pool. `fixed_s`: the time; `learns`: Continuum's instead. `tokens_per_s`: at which workers compute a context."""

    def __init__(self, fixed_s: float, learns: bool, tokens_per_s: float) -> None:
        self._fixed_s = fixed_s
        self._learns = learns
        self._tokens_per_s = tokens_per_s
        self._paused: OrderedDict[WorkflowId, tuple[float, int]] = OrderedDict()  # since when, and after how many steps
        self._pauses: deque[float] = deque(maxlen=SEEN_MAX)
        self._lengths: deque[int] = deque(maxlen=SEEN_MAX)
        self._waits: deque[float] = deque(maxlen=SEEN_MAX)
        self._learnt_s = -LEARN_S
        self._queueing_s = 0.0
        self._memoryful = 1.0

    @property
    def on(self) -> bool:
        return self._learns or self._fixed_s > 0

    def begun(self, dispatch: StepDispatched, now_s: float) -> None:
        """A program's next step goes to a worker."""
        if not self._learns or dispatch.workflow not in self._paused or dispatch.attempt > 1:
            return
        since_s, _ = self._paused[dispatch.workflow]
        accepted_s = dispatch.job.accepted_ns / 1e9
        self._pauses.append(max(0.0, accepted_s - since_s))
        if 2 * dispatch.cached_tokens < dispatch.job.prompt_tokens:
            self._waits.append(now_s - accepted_s)

    def seconds(self, dispatch: StepDispatched, now_s: float, last: bool) -> float:
        """A step has succeeded: how long its KV is to be kept. `last`: its program has no other."""
        if not self._learns:
            return 0.0 if last else self._fixed_s
        _, steps = self._paused.pop(dispatch.workflow, (0.0, 0))
        if last:
            self._lengths.append(steps + 1)
            return 0.0
        self._paused[dispatch.workflow] = (now_s, steps + 1)
        if len(self._paused) > PROGRAMS_MAX:
            self._paused.popitem(last=False)
        if now_s - self._learnt_s >= LEARN_S:
            self._learnt_s = now_s
            self._queueing_s = fmean(self._waits) if self._waits else 0.0
            self._memoryful = memoryfulness(self._lengths)
        recomputing_s = dispatch.job.prompt_tokens / self._tokens_per_s if self._tokens_per_s else 0.0
        return keep_s((), self._pauses, benefit_s(self._queueing_s, self._memoryful, recomputing_s))
