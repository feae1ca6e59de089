"""Which workers hold how much of a prompt.

Rules:
1. Every prompt younger than `answer_within_ms` is answered by one PrefixMatched: for each worker of its model the number of leading blocks
   that it holds. An empty map is an answer too: the scheduler need not wait. In a large fleet those that hold what most hold are not named.
2. Of a worker that the registry is not sure about nothing counts. It is unsure after a gap in the numbers of the worker's changes, when a
   heartbeat spoke of a change that had not come by the next one, and when the worker seems to hold more than it can.
3. It asks such a worker for a snapshot, at most once a second, until it has one and all changes behind it.

Invariants: a worker that counts holds exactly what is indexed, as of the last change heard of it. A restarted engine holds nothing. What is
kept is bounded by the fleet: workers, and twice the capacity of each.
"""

from services.kv_registry.config import KvRegistryConfig
from services.kv_registry.index import Held, match
from services.kv_registry.paths import Stretch, whole
from services.kv_registry.state import PromptSeen, State, apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import WorkerBeat, WorkerGone, WorkerRegistered
from shared.contracts.kv import KvChanged, KvResyncRequested, KvSnapshot, PrefixMatched
from shared.core.machine import Machine

MS = 1_000_000


def decide(state: State, event: Message, now_ns: int, config: KvRegistryConfig) -> list[Message]:
    """Answer a prompt, or ask the worker that has just been heard of for a snapshot."""
    if isinstance(event, PromptSeen):
        late = event.time_ns and now_ns - event.time_ns > config.answer_within_ms * MS  # 0: its age is not known
        return [] if late else [_matched(state, event)]
    if isinstance(event, KvChanged | KvSnapshot | WorkerBeat | WorkerRegistered):
        worker = state.workers.get(event.worker)
        if worker is not None and not worker.feed.synced and now_ns >= worker.feed.ask_ns:
            return [KvResyncRequested(worker=event.worker, cell=state.cell)]
    return []


def wake_ns(state: State, config: KvRegistryConfig) -> None:
    """Never: a request is repeated with the worker's next heartbeat, and who does not beat would not answer."""


def _matched(state: State, prompt: PromptSeen) -> PrefixMatched:
    index = state.indexes.get(prompt.model)
    held = match(index, whole(state.paths, Stretch(prompt.after, prompt.blocks))) if index is not None else Held({}, 0)
    return PrefixMatched(
        step=prompt.step,
        workflow=prompt.workflow,
        tenant=prompt.tenant,
        trace=prompt.trace,
        cell=state.cell,
        model=prompt.model,
        blocks=held.blocks,
        block_tokens=prompt.block_tokens,
        others=held.others,
    )


MACHINE: Machine[State, KvRegistryConfig] = Machine(
    name="kv_registry",
    state=State,
    config=KvRegistryConfig,
    inputs=PromptSeen | KvChanged | KvSnapshot | WorkerRegistered | WorkerGone | WorkerBeat | Tick,
    start=lambda config: State(cell=config.cell),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
