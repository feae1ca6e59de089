"""Block hashes of a prompt, equal to those in SGLang's KV events, so that prompts and caches can be compared by them.

Source: SGLang 0.5.23's KV events, checked against a running server (tests/integration/test_sglang.py): the digest of a block is
SHA-256(digest of the block before || tokens as little-endian u32), the first block has nothing before it, and the event's hash is the
digest's first 8 bytes, big-endian, signed.
"""

import hashlib
from array import array
from collections.abc import Sequence


class BlockHasher:
    """The hashes of a token sequence that still grows. What an adapter computes of the same tokens is something else."""

    def __init__(self, block_tokens: int, adapter: str = "") -> None:
        self.hashes: list[int] = []  # of each full block so far
        self._width = block_tokens * 4
        self._digest = adapter.encode()
        self._rest = b""  # the incomplete last block, packed

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens`. Raises OverflowError for a token that is not an unsigned 32-bit number."""
        packed = array("I", tokens)
        if packed.itemsize != 4:
            raise AssertionError("array('I') must hold 4-byte integers")
        data = self._rest + packed.tobytes()
        full = len(data) // self._width * self._width
        for start in range(0, full, self._width):
            self._digest = hashlib.sha256(self._digest + data[start : start + self._width]).digest()
            self.hashes.append(int.from_bytes(self._digest[:8], "big", signed=True))
        self._rest = data[full:]


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """The hash of each full block of `tokens`; the incomplete last block has none."""
    hasher = BlockHasher(block_tokens)
    hasher.extend(tokens)
    return hasher.hashes
