"""How long prompts are kept in the stream: as long as an open step may need them.

Rule: what was stored before the admission of the oldest open step, less a grace, goes. Where none is open, that is before the time up to
which the log is recorded: a step whose admission has not been read yet has its prompt from about then.
Inputs: times of nats-server, which stored all of it. Of the oldest open step also the time by the clock of whoever admitted it, if that is
earlier; the stream of steps may no longer have its admission.
Constants: the grace (`prompts_kept_s`) covers what is not exact in this. A prompt is stored before its admission, and by as much as the
streams' duplicate window (120 s) where an admission crashed in between and decided again: the second prompt is then taken for a copy. The
order of open steps follows the clocks of the processes that admitted them. Servers of a cluster may answer a moment behind each other.
"""

from services.workflow.config import WorkflowConfig

S = 1_000_000_000


def kept_since_ns(recorded_ns: int, oldest: tuple[int, ...], config: WorkflowConfig) -> int:
    """Since when prompts are kept. `recorded_ns`: what was stored until then is recorded; `oldest`: the times that are known of the oldest
    open step's admission, none where no step is open."""
    return min((recorded_ns, *oldest)) - int(config.prompts_kept_s * S)
