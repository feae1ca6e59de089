"""Iterations that only decode, many at once: when each begins, and which blocks they fill.

While every running request decodes, nothing can be admitted and no block is short, each iteration differs from the one before only in
that each context is one token longer. Its duration is linear in the contexts (step_law.py), so k iterations take the closed form of an
arithmetic series, and only the iterations in which some request begins or fills a block touch the cache. Batching.stride plans so many
iterations, Batching.advance runs as many of them as the caller wants: what comes out is what single steps would do, at the cost of
O(running requests + blocks).

Rounding: single iterations are rounded to nanoseconds each, a stride once. So k iterations differ by less than k / 2 + 1 ns. Pure.
"""

import msgspec

from shared.core.kv_cache import Chain, Holding, KvCache
from shared.core.step_law import StepLaw, StepWork, step_s

Rows = dict[int, list[tuple[Holding, Chain]]]  # of those that fill a block in iteration p, p + block_tokens, …, by p


class Stride(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, valid until anything else happens to its Batching. Iteration 0 begins at 0 ns."""

    iterations: int  # at most so many, at least 1
    work: StepWork  # of the first one
    first_s: float  # duration of the first one
    growth_s: float  # by how much each takes longer than the one before
    rows: Rows

    def ns(self, iterations: int) -> int:
        """How long the first `iterations` take together: when that many have ended, and the next one begins."""
        return round((self.first_s * iterations + self.growth_s * (iterations * (iterations - 1) // 2)) * 1e9)

    def begun(self, elapsed_ns: int) -> int:
        """How many iterations began before `elapsed_ns`. What happens then takes effect once these have ended: at `ns` of them. One that
        begins at that very time has not begun."""
        low, high = 0, self.iterations
        while low < high:
            middle = (low + high) // 2
            if self.ns(middle) < elapsed_ns:
                low = middle + 1
            else:
                high = middle
        return low

    def work_of(self, iterations: int) -> StepWork:
        """What the first `iterations` compute together."""
        requests, later = self.work.requests, self.work.requests * (iterations * (iterations - 1) // 2)
        return StepWork(
            new_tokens=requests * iterations,
            context_tokens=self.work.context_tokens * iterations + later,
            attended_pairs=self.work.attended_pairs * iterations + later,
            requests=requests * iterations,
        )


def planned(law: StepLaw, requests: int, context: int, iterations: int, rows: Rows) -> Stride:
    """Of `requests` whose computed tokens sum to `context`."""
    work = StepWork(new_tokens=requests, context_tokens=context, attended_pairs=context + requests, requests=requests)
    return Stride(
        iterations=iterations,
        work=work,
        first_s=step_s(law, requests, context, context + requests, requests),
        growth_s=(law.pair_s + law.context_s) * requests,
        rows=rows,
    )


def longest(rows: Rows, block_tokens: int, iterations: int, blocks: int) -> int:
    """How many of `iterations` begin no more than `blocks` blocks."""
    low, high = 0, iterations
    if _begun(rows, block_tokens, high) <= blocks:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if _begun(rows, block_tokens, middle) <= blocks:
            low = middle
        else:
            high = middle
    return low


def fill(cache: KvCache, rows: Rows, block_tokens: int, iterations: int) -> None:
    """Begin and seal the blocks of so many iterations, in the order of single ones."""
    offsets = sorted({offset % block_tokens for phase in rows for offset in (phase, phase + 1)})
    for begin in range(0, iterations, block_tokens):
        for offset in offsets:
            if begin + offset >= iterations:
                return
            if not cache.grow_each([holding for holding, _ in rows.get((offset - 1) % block_tokens, ())]):
                raise AssertionError("a stride was planned over more blocks than there are")
            cache.seal_all([(holding, chain[len(holding.sealed)]) for holding, chain in rows.get(offset, ())])


def _begun(rows: Rows, block_tokens: int, iterations: int) -> int:
    """How many blocks are begun in so many iterations."""
    blocks = 0
    for phase, requests in rows.items():
        first = (phase + 1) % block_tokens  # the iteration behind the one that fills a block needs the next one
        if iterations > first:
            blocks += len(requests) * ((iterations - 1 - first) // block_tokens + 1)
    return blocks
