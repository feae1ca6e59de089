"""NVIDIA Dynamo's cost of a worker: what must be computed there, and what it holds."""

from services.scheduler.config import DynamoConfig
from services.scheduler.policies.place_dynamo import cost, cost_on, least_cost
from shared.contracts.steps import StepDispatched
from tests.candidates import candidate, job
from tests.scheduler_world import World, matched, one

# The example of Dynamo's documentation: a prompt of 10 blocks, of which 2, 5 and 8 are cached; 10, 5 and 9 blocks are active. Ours has the
# prompt's own blocks on top of these, alike on all workers.
PROMPT = job(160)
WORKERS = [
    candidate("1", cached=2 * 16, used=10),
    candidate("2", cached=5 * 16, used=5),
    candidate("3", cached=8 * 16, used=9),
]


def test_the_documented_example() -> None:
    weight = DynamoConfig(overlap_score_weight=1.0)
    assert [cost(prefill, decode, weight) for prefill, decode in ((8, 10), (5, 5), (2, 9))] == [18, 10, 11]
    assert DynamoConfig().overlap_score_weight == 1.0


def test_the_documented_example_on_workers() -> None:
    own_blocks = 10
    assert [cost_on(PROMPT, each, DynamoConfig()) - own_blocks for each in WORKERS] == [18, 10, 11]
    assert least_cost(PROMPT, WORKERS, DynamoConfig()) == (WORKERS[1], 20)


def test_a_heavier_weight_follows_the_cache_and_none_the_load_alone() -> None:
    assert least_cost(PROMPT, WORKERS, DynamoConfig(overlap_score_weight=2.0))[0] is WORKERS[2]  # 2 x 2 + 9 < 2 x 5 + 5
    assert least_cost(PROMPT, WORKERS, DynamoConfig(overlap_score_weight=0.0))[0] is WORKERS[1]


def test_prefill_that_is_still_to_be_done_counts_and_among_equals_the_id() -> None:
    assert least_cost(PROMPT, [candidate("a", backlog=16), candidate("b")], DynamoConfig())[0].load.id == "b"
    assert least_cost(PROMPT, [candidate("b"), candidate("a")], DynamoConfig())[0].load.id == "a"


def test_the_scheduler_follows_its_configuration() -> None:
    for weight, worker in ((1.0, "b"), (0.0, "a")):
        world = World(placement="dynamo_kv_cost", dynamo=DynamoConfig(overlap_score_weight=weight))
        world.join("a")
        world.join("b")
        world.beat("b", blocks_used=20)
        world.take(matched("s", b=40))
        sent = one(StepDispatched, world.route("s", prompt=1_000))
        assert sent.worker == worker
    assert sent.why.startswith("least cost of 2: 63.0 blocks, ")
