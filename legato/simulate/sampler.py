"""Looks at a thought fleet at equal distances of time."""

from legato.simulate.bus import Service
from legato.simulate.fleet import Crew
from shared.contracts.fleet import WorkerState
from shared.sim.heap import Heap
from shared.sim.measured import Samples


class Sampler:
    """One row at a time, into `samples`."""

    def __init__(self, heap: Heap, crew: Crew, scheduler: Service, samples: Samples) -> None:
        self._heap = heap
        self._crew = crew
        self._scheduler = scheduler
        self._samples = samples
        self._last = (0.0, 0, 0, 0)  # when, and what had been counted then

    def sample(self) -> None:
        """One row, of now."""
        samples, counts = self._samples, self._crew.counts
        workers = [each for each in self._crew.workers.values() if each.state in (WorkerState.READY, WorkerState.DRAINING)]
        caches = [each.batching.cache for each in workers]
        blocks = sum(cache.blocks for cache in caches) or 1
        at_s, tokens, prompts, cached = self._last
        self._last = (self._heap.now_s, counts.output_tokens, counts.prompt_tokens, counts.cached_tokens)
        samples.at_s.append(self._heap.now_s)
        samples.queued.append(sum(len(queue.keys) for queue in self._scheduler.state.queues.values()))
        samples.running.append(sum(each.batching.running for each in workers))
        samples.workers.append(sum(each.state is WorkerState.READY for each in workers))
        samples.coming.append(self._crew.coming())
        samples.kv_used.append(sum(cache.used for cache in caches) / blocks)
        samples.kv_cached.append(sum(cache.cached for cache in caches) / blocks)
        samples.tokens_per_s.append((counts.output_tokens - tokens) / max(self._heap.now_s - at_s, 1e-9))
        samples.hit_rate.append((counts.cached_tokens - cached) / max(counts.prompt_tokens - prompts, 1))
        samples.usd_per_hour.append(self._crew.usd_per_hour())
