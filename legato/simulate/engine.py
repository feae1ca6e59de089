"""The engine model on a world's clock: iterations one after the other; many at once while nothing but decoding happens.

An iteration is computed when it begins, and what it produced is told when it has ended, as in the simulated engine that runs in real time.
A stride of many iterations is planned without being computed; whoever submits, aborts or looks settles it first: what has ended is told,
and the iteration that is under way goes on alone (shared/core/strides.py).
"""

from collections.abc import Callable

from shared.contracts.kv import KvEvent
from shared.core.batching import Batching, BatchingConfig, Refusal, Request
from shared.core.batching import Step as Iteration
from shared.core.step_law import StepLaw
from shared.core.strides import Stride
from shared.sim.heap import Heap

Produced = Callable[[Request, int, int, int], None]  # a request, how many tokens, when the first and the last of them were there
Stored = Callable[[list[KvEvent]], None]


class Engine:
    """One life of an engine, which begins empty. `stop` ends it."""

    def __init__(self, heap: Heap, model: tuple[BatchingConfig, StepLaw], produced: Produced, stored: Stored) -> None:
        self.batching = Batching(*model)
        self.retractions = 0
        self._heap = heap
        self._produced = produced
        self._stored = stored
        self._stopped = False
        self._busy = False  # an iteration or a stride is under way
        self._stride: Stride | None = None
        self._begun_ns = 0  # of the stride

    def submit(self, request: Request) -> Refusal | None:
        """Take a request, from the next iteration on."""
        self.settle()
        refusal = self.batching.submit(request)
        if not self._busy:
            self._busy = True
            self._heap.at(self._heap.now_ns, self._iterate, None)
        return refusal

    def abort(self, request: Request) -> None:
        """Forget it. What the iteration under way produces of it is told to nobody who still asks."""
        self.settle()
        self.batching.abort(request)

    def stop(self) -> None:
        """Nothing happens any more."""
        self._stopped = True

    def settle(self) -> None:
        """Tell what has ended by now."""
        stride, begun_ns = self._stride, self._begun_ns
        if stride is None:
            return
        self._stride = None
        begun = stride.begun(self._heap.now_ns - begun_ns)
        if not begun:
            self._heap.at(self._heap.now_ns, self._iterate, None)
            return
        ended = self.batching.advance(stride, begun - 1) if begun > 1 else None
        self._one(begun_ns + stride.ns(begun - 1))
        if ended is not None:
            self._tell(ended, begun_ns)

    def _iterate(self, _: object) -> None:
        if self._stopped:
            return
        self._busy = not self.batching.idle
        if not self._busy:
            return
        now_ns = self._heap.now_ns
        self.batching.cache.expire(now_ns)
        self._stride = stride = self.batching.stride()
        if stride is None:
            self._one(now_ns)
        else:
            self._begun_ns = now_ns
            self._heap.at(now_ns + stride.ns(stride.iterations), self._strided, stride)

    def _one(self, begun_ns: int) -> None:
        """The single iteration that began then."""
        iteration = self.batching.step()
        self.retractions += len(iteration.retracted)
        if iteration.kv_events:
            self._stored(iteration.kv_events)
        self._heap.at(begun_ns + iteration.duration_ns, self._ended, (iteration, begun_ns))

    def _ended(self, what: tuple[Iteration, int]) -> None:
        iteration, begun_ns = what
        if not self._stopped:
            self._heap.at(self._heap.now_ns, self._iterate, None)
            self._tell(iteration, begun_ns)

    def _strided(self, stride: Stride) -> None:
        if self._stride is stride and not self._stopped:
            self._stride = None
            self._heap.at(self._heap.now_ns, self._iterate, None)
            self._tell(self.batching.advance(stride, stride.iterations), self._begun_ns)

    def _tell(self, iteration: Iteration, begun_ns: int) -> None:
        """Those that produced something, and what the cache has gained or lost by a stride."""
        if iteration.iterations > 1 and iteration.kv_events:
            self._stored(iteration.kv_events)
        tokens, last_ns = iteration.iterations, begun_ns + iteration.duration_ns
        first_ns = begun_ns + iteration.duration_ns // tokens
        for request in iteration.produced:
            self._produced(request, tokens, first_ns, last_ns)
