"""Block hashes of what programs say."""

import os
import subprocess
import sys

import pytest

from shared.sim.programs import Chain, Segment


def test_a_block_is_known_by_what_it_covers_and_by_all_before_it() -> None:
    first = Chain([Segment(1, 20), Segment(2, 44)], 16).first(4)
    assert len({*first}) == 4
    assert Chain([Segment(1, 20), Segment(2, 60)], 16).first(4) == first
    other = Chain([Segment(1, 20), Segment(3, 44)], 16).first(4)
    assert (other[0], {*other[1:]} & {*first}) == (first[0], set())
    longer = Chain([Segment(9, 16), Segment(1, 20), Segment(2, 44)], 16).first(5)
    assert not {*longer} & {*first}


def test_where_a_segment_ends_makes_a_difference() -> None:
    assert Chain([Segment(1, 8), Segment(1, 8)], 16)[0] != Chain([Segment(1, 16)], 16)[0]
    assert Chain([Segment(1, 16), Segment(1, 16)], 16)[1] != Chain([Segment(1, 32)], 16)[1]


def test_there_is_nothing_behind_the_last_full_block() -> None:
    with pytest.raises(IndexError):
        Chain([Segment(1, 20)], 16)[1]


def test_a_chain_is_the_same_in_each_process() -> None:
    script = "from shared.sim.programs import Chain, Segment; print(Chain([Segment(2**63, 100), Segment(5, 900)], 16).first(60))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1
