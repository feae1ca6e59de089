"""A second tier of the prefix cache in the host's memory: what was evicted from the GPU, found again at the price of a copy.

Rule: an evicted block is copied here; when the tier is full the least recently used one goes. A request whose prefix goes on here, behind
what the GPU holds, has those blocks copied back instead of computing them; the copies here stay. A copy to the host runs beside the
computation and costs no time; a copy back costs its bytes over the link, hidden behind what the same iteration computes (batching.py). The
tier is in no cache event: routing knows what the GPUs hold.

What the GPU and the tier hold together is closed under prefixes: while a block is here, its parent is on the GPU, or here and used later.
For the GPU evicts children first, and of a chain that is used again the end counts as used first. Pure.

Source: SGLang's HiCache (2025: L2 in host memory, loaded layer by layer while others compute) and vLLM's KV offloading connector.
"""

from collections import OrderedDict


class HostTier:
    """At most `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def __contains__(self, block: int) -> bool:
        return block in self._held

    def __len__(self) -> int:
        return len(self._held)

    def put(self, block: int) -> None:
        """It was evicted from the GPU."""
        self._held[block] = None
        self._held.move_to_end(block)
        if len(self._held) > self.blocks:
            self._held.popitem(last=False)

    def use(self, blocks: list[int]) -> None:
        """These, in chain order, are copied back."""
        for block in reversed(blocks):
            self._held.move_to_end(block)

    def hashes(self) -> list[int]:
        """All blocks that are here."""
        return list(self._held)
