"""Block hashes of a prompt, equal to those in SGLang's KV events, so that prompts and caches can be compared by them.

Source: SGLang 0.5.23's KV events, checked against a running server (tests/integration/test_sglang.py): the digest of a block is
SHA-256(digest of the block before || tokens as little-endian u32), the first block has nothing before it, and the event's hash is the
digest's first 8 bytes, big-endian, signed.
"""

import hashlib
from array import array
from collections.abc import Sequence


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """The hash of each full block of `tokens`; the incomplete last block has none."""
    packed = array("I", tokens)
    if packed.itemsize != 4:
        raise AssertionError("array('I') must hold 4-byte integers")
    data = packed.tobytes()
    width = block_tokens * 4
    hashes: list[int] = []
    digest = b""
    for start in range(0, len(tokens) // block_tokens * width, width):
        digest = hashlib.sha256(digest + data[start : start + width]).digest()
        hashes.append(int.from_bytes(digest[:8], "big", signed=True))
    return hashes
