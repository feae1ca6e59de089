"""llm-d's default profile: three scores and their weights."""

import pytest

from services.scheduler.config import LlmDConfig
from services.scheduler.policies.place_llm_d import highest_score, kv_score, prefix_score, queue_score
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate
from tests.scheduler_world import World, matched, one

DEFAULT = LlmDConfig()


def test_the_defaults_are_those_of_the_default_configuration() -> None:
    assert (DEFAULT.prefix_weight, DEFAULT.kv_weight, DEFAULT.queue_weight) == (3.0, 2.0, 2.0)


def test_the_prefix_score_is_the_share_of_whole_blocks() -> None:
    assert prefix_score(candidate("a", cached=80), 160) == 0.5
    assert prefix_score(candidate("a", cached=95), 170) == 0.5
    assert prefix_score(candidate("a", cached=0), 7) == 0.0


def test_the_kv_score_is_what_is_free() -> None:
    assert kv_score(candidate("a", used=25)) == 0.75
    assert kv_score(candidate("a", used=120)) == 0.0


def test_the_queue_score_goes_from_one_for_the_shortest_to_zero_for_the_longest() -> None:
    assert [queue_score(queue, 10, 2) for queue in (2, 6, 10)] == [1.0, 0.5, 0.0]
    assert queue_score(4, 4, 4) == 1.0


def test_the_highest_weighted_sum_wins() -> None:
    warm = candidate("warm", cached=160, used=80, slots=4, busy=6)  # 3 x 1 + 2 x 0.2 + 2 x 0
    cold = candidate("cold", used=10, slots=4, busy=4)  # 3 x 0 + 2 x 0.9 + 2 x 1
    half = candidate("half", cached=80, used=50, slots=4, busy=5)  # 3 x 0.5 + 2 x 0.5 + 2 x 0.5
    chosen, score = highest_score([warm, cold, half], 160, DEFAULT)
    assert chosen is cold
    assert score == pytest.approx(3.8)
    assert highest_score([warm, half], 160, DEFAULT)[1] == pytest.approx(1.5 + 1.0 + 2.0)  # the shortest of these two queues
    assert highest_score([warm, cold, half], 160, LlmDConfig(queue_weight=0))[0] is warm


def test_among_equals_the_first_by_id() -> None:
    assert highest_score([candidate("b"), candidate("a")], 160, DEFAULT)[0].load.id == "a"


def test_the_scheduler_follows_its_configuration() -> None:
    for settings, worker in ((LlmDConfig(), "b"), (LlmDConfig(prefix_weight=0.1), "a")):
        world = World(placement="llm_d", llm_d=settings)
        world.join("a")
        world.join("b")
        world.beat("b", blocks_used=500)
        world.take(matched("s", b=60))
        sent = one(StepDispatched, world.route("s", prompt=1_000))
        assert sent.worker == worker
    assert sent.why.startswith("highest score of 2: ")
