"""Prompts by what is new of them: the machine knows the rest, however many processes there were before this one."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv_registry.paths import Paths, Stretch, learn, shortened, whole

BLOCKS_MAX = 24

# Which conversation grows, how many of its blocks stay, how many are added; and whether the process is a new one, or the state comes
# back from a snapshot.
growth = st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 4))
commands = st.one_of(growth, growth, growth, st.just("new process"), st.just("snapshot"))


@settings(max_examples=500, deadline=None)
@given(st.lists(commands, max_size=60))
def test_the_state_gives_back_every_prompt(script: list[object]) -> None:
    here, state, fresh, conversations = Paths(), Paths(), 0, [[], [], []]  # type: ignore[var-annotated]
    for command in script:
        if command == "new process":
            here = Paths()
        elif command == "snapshot":
            state = msgspec.json.decode(msgspec.json.encode(state), type=Paths)
        else:
            which, kept, added = command  # type: ignore[misc]
            blocks = [*conversations[which][:kept], *range(fresh, fresh + added)]
            conversations[which], fresh = blocks, fresh + added
            new = shortened(here, blocks)
            learn(here, new, BLOCKS_MAX)
            learn(state, new, BLOCKS_MAX)
            assert whole(state, new) == blocks
            for paths in (here, state):
                assert paths.size == sum(len(each.blocks) for each in paths.stretches.values()) <= BLOCKS_MAX


def test_a_prompt_that_grows_brings_what_is_new_of_it() -> None:
    paths = Paths()
    learn(paths, shortened(paths, [1, 2]))
    assert shortened(paths, [1, 2, 3]) == Stretch(2, [3])
    learn(paths, Stretch(2, [3]))
    assert shortened(paths, [1, 2, 3]) == Stretch(3, [])
    assert shortened(paths, [1, 2, 3, 4, 5]) == Stretch(3, [4, 5])
    assert shortened(paths, [1, 9]) == Stretch(None, [1, 9])


def test_what_was_used_longest_ago_goes_and_ends_before_beginnings() -> None:
    paths = Paths()
    for blocks in ([1, 2], [1, 2, 3, 4], [1, 2, 5, 6]):
        learn(paths, shortened(paths, blocks), 8)
    learn(paths, shortened(paths, [7, 8, 9]), 8)
    assert shortened(paths, [1, 2, 3, 4]) == Stretch(2, [3, 4])
    assert shortened(paths, [1, 2, 5, 6]) == Stretch(6, [])


def test_of_one_path_the_beginning_goes_last() -> None:
    paths = Paths()
    for blocks in ([1], [1, 2], [1, 2, 3], [7], [8], [9], [10], [11]):
        learn(paths, shortened(paths, blocks), 6)
    assert shortened(paths, [1, 2, 3]) == Stretch(1, [2, 3])


def test_a_path_that_is_not_known_gives_nothing() -> None:
    assert whole(Paths(), Stretch(7, [8])) == []


def test_a_prompt_longer_than_half_of_all_is_not_kept() -> None:
    paths = Paths()
    learn(paths, Stretch(None, [1, 2, 3, 4, 5]), 8)
    assert paths == Paths()


def test_a_circle_of_hashes_is_left() -> None:
    paths = Paths(stretches={1: Stretch(2, [1]), 2: Stretch(1, [2])}, size=2)
    assert shortened(paths, [1]) == Stretch(None, [1])
