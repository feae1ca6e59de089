"""Block hashes of a prompt."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from shared.core.blocks import block_hashes

RECORDED = [3783480490812179100, -5523102609743566000]  # SGLang 0.5.23's events for the prompt 100..139 with pages of 16

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=100)
widths = st.integers(1, 16)


def test_the_hash_of_a_block_is_the_head_of_a_chained_sha256() -> None:
    first = hashlib.sha256(b"\x01\0\0\0\x02\0\0\0").digest()
    second = hashlib.sha256(first + b"\x03\0\0\0\x04\0\0\0").digest()
    expected = [int.from_bytes(digest[:8], "big", signed=True) for digest in (first, second)]
    assert block_hashes([1, 2, 3, 4], block_tokens=2) == expected


def test_hashes_recorded_from_a_running_sglang_stay_the_same() -> None:
    assert block_hashes(list(range(100, 140)), block_tokens=16) == RECORDED


@given(tokens, widths)
def test_only_full_blocks_have_a_hash(prompt: list[int], width: int) -> None:
    assert len(block_hashes(prompt, width)) == len(prompt) // width


@given(tokens, tokens, widths)
def test_a_longer_prompt_keeps_the_hashes_of_its_beginning(prompt: list[int], more: list[int], width: int) -> None:
    short, long = block_hashes(prompt, width), block_hashes(prompt + more, width)
    assert long[: len(short)] == short


@given(tokens, widths, st.data())
def test_a_changed_token_changes_the_hash_of_its_block_and_of_all_after_it(prompt: list[int], width: int, data: st.DataObject) -> None:
    hashes = block_hashes(prompt, width)
    if not hashes:
        return
    position = data.draw(st.integers(0, len(hashes) * width - 1))
    changed = [*prompt[:position], (prompt[position] + 1) % 2**32, *prompt[position + 1 :]]
    others = block_hashes(changed, width)
    block = position // width
    assert others[:block] == hashes[:block]
    assert all(one != other for one, other in zip(hashes[block:], others[block:], strict=True))
