"""SGLang's model gateway: the longest prefix where loads are in balance, the shortest queue where they are not."""

import pytest

from services.scheduler.config import SmgConfig
from services.scheduler.policies.place_smg import cache_aware, out_of_balance
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate
from tests.scheduler_world import World, matched, one

DEFAULT = SmgConfig()


def test_the_defaults_are_the_documented_ones() -> None:
    assert (DEFAULT.cache_threshold, DEFAULT.balance_abs_threshold, DEFAULT.balance_rel_threshold) == (0.3, 64, 1.5)


@pytest.mark.parametrize(
    ("most", "least", "out"),
    [
        (64, 0, False),  # the difference must be above 64
        (65, 0, True),
        (200, 135, False),  # 65 more, and yet less than 1.5 times as many
        (196, 131, False),  # 196 is below 196.5
        (197, 131, True),
    ],
)
def test_loads_are_out_of_balance_where_both_thresholds_are_passed(most: int, least: int, out: bool) -> None:
    assert out_of_balance(most, least, DEFAULT) is out


def test_in_balance_the_longest_prefix_wins_if_it_is_long_enough() -> None:
    three = [candidate("a", busy=0), candidate("b", busy=60, cached=31), candidate("c", busy=50, cached=40)]
    assert cache_aware(three, 100, DEFAULT) == (three[2], "cached")
    assert cache_aware(three, 130, DEFAULT) == (three[2], "cached")
    assert cache_aware(three, 134, DEFAULT) == (three[0], "not cached")  # 40 of 134 is less than 0.3


def test_of_equally_long_prefixes_the_less_loaded_worker_has_the_step() -> None:
    two = [candidate("a", busy=9, cached=64), candidate("b", busy=3, cached=64)]
    assert cache_aware(two, 100, DEFAULT)[0] is two[1]


def test_out_of_balance_the_least_loaded_wins_whatever_is_cached() -> None:
    two = [candidate("a", busy=100, cached=99), candidate("b", busy=3)]
    assert cache_aware(two, 100, DEFAULT) == (two[1], "out of balance")


def test_the_scheduler_follows_its_configuration() -> None:
    world = World(placement="smg_cache_aware", smg=SmgConfig(balance_abs_threshold=2, balance_rel_threshold=1.0))
    world.join("a", slots=9)
    world.join("b", slots=9)
    sent = []
    for number in range(4):
        world.take(matched(f"s{number}", b=6))
        sent.append(one(StepDispatched, world.route(f"s{number}", prompt=100)))
    assert [each.worker for each in sent] == ["b", "b", "b", "a"]
    assert sent[0].why.startswith("cache aware of 2: cached, 96 tokens cached")
    assert sent[3].why.startswith("cache aware of 2: out of balance")
