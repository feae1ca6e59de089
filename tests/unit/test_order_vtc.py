"""Fair shares for tenants, by virtual token counters."""

from services.scheduler.ordering import TENANTS_MAX
from services.scheduler.policies.order_vtc import INPUT_WEIGHT, OUTPUT_WEIGHT, input_cost, lifted, output_cost
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import StepClosed, StepDispatched
from tests.scheduler_world import MODEL, World, ended, matched, one, only, registered, routed


def counters(world: World) -> dict[str, int]:
    return {str(name): tenant.counter for name, tenant in world.state.ledger.tenants.items()}


def test_a_prompt_token_counts_one_and_an_output_token_two() -> None:
    assert (input_cost(100), output_cost(50)) == (100, 100)


def test_the_lift_is_to_the_least_that_waits_or_to_the_last_that_did() -> None:
    assert lifted(5, [30, 20], 99) == 20
    assert lifted(25, [30, 20], 99) == 25
    assert lifted(5, [], 40) == 40
    assert lifted(50, [], 40) == 50


def order_of(world: World, running: StepDispatched, steps: int, output_tokens: int = 0) -> list[str]:
    """In which the waiting steps go where one runs at a time."""
    order: list[str] = []
    for _ in range(steps):
        running = one(StepDispatched, world.take(ended(running.step, running.attempt, "a", output_tokens=output_tokens)))
        order.append(str(running.step))
    return order


def test_the_tenant_that_was_served_least_goes_first() -> None:
    """Steps of 300, 100 and 150 tokens: after each, the least counter is next."""
    world = World(order="vtc")
    world.join("a", slots=1, blocks=1_000)
    running = one(StepDispatched, world.route("x", tenant="other", prompt=1))
    for tenant, prompt in (("big", 300), ("small", 100), ("middle", 150)):
        for number in range(3):
            world.route(f"{tenant}{number}", tenant=tenant, prompt=prompt)
    # big 300; small 100; middle 150; small 200; middle 300 (first seen after big and small); small 300; big 600; middle 450
    assert order_of(world, running, 7) == ["big0", "small0", "middle0", "small1", "middle1", "small2", "big1"]


def test_what_one_decision_dispatches_is_shared_fairly_too() -> None:
    world = World(order="vtc")
    world.join("b", slots=1)
    world.take(registered("a", slots=6))
    world.take(matched("earlier"))
    world.route("running", tenant="other", prompt=1)
    for tenant, prompt in (("big", 400), ("small", 100)):
        for number in range(6):
            world.route(f"{tenant}{number}", tenant=tenant, prompt=prompt)
    world.wait(10)
    sent = [str(each.step) for each in only(StepDispatched, world.beat("a"))]
    assert sent == ["big0", "small0", "small1", "small2", "small3", "big1"]
    assert counters(world) == {"other": 1, "big": 801, "small": 401}


def test_output_is_charged_when_it_is_heard_of_and_once() -> None:
    world = World(order="vtc")
    world.join("a")
    sent = one(StepDispatched, world.route("s", tenant="t", prompt=100))
    assert counters(world) == {"t": 100 * INPUT_WEIGHT}
    world.beat("a", ("s", 1))  # says one token
    world.beat("a", ("s", 1))
    assert counters(world) == {"t": 100 + OUTPUT_WEIGHT}
    world.reload()
    world.take(ended(sent.step, 1, "a", output_tokens=40))
    assert counters(world) == {"t": 100 + 40 * OUTPUT_WEIGHT}


def test_what_is_computed_again_after_a_loss_is_not_charged() -> None:
    world = World(order="vtc")
    world.join("a")
    sent = one(StepDispatched, world.route("s", tenant="t", prompt=100))
    again = one(StepDispatched, world.end(sent, Status.FAILED, retryable=True) + world.beat("a"))
    assert again.attempt == 2
    assert counters(world) == {"t": 100}


def test_who_was_away_has_saved_nothing_and_who_used_a_free_fleet_owes_nothing() -> None:
    world = World(order="vtc")
    world.join("a", slots=1)
    running = one(StepDispatched, world.route("x0", tenant="x", prompt=1_000))
    world.route("x1", tenant="x", prompt=1_000)
    world.route("y0", tenant="y", prompt=10)  # lifted to x's 1,000
    assert counters(world) == {"x": 1_000, "y": 1_000}
    assert order_of(world, running, 2) == ["x1", "y0"]
    assert counters(world) == {"x": 2_000, "y": 1_010}
    world.route("z0", tenant="z", prompt=10)  # nobody waits: lifted to y, who was the last to leave the queue
    assert counters(world)["z"] == 1_010


def test_two_tenants_that_always_wait_are_served_alike() -> None:
    """Theorem 4.4 of the paper: their difference is at most 2 x max(input weight x longest prompt, output weight x tokens of a batch)."""
    world = World(order="vtc", queue_max=10_000)
    world.join("a", slots=2, blocks=1_000)
    running = [one(StepDispatched, world.route(f"x{number}", tenant="x", prompt=1)) for number in range(2)]
    prompts, outputs = {"long": 500, "short": 20}, {"long": 100, "short": 40}
    for number in range(300):
        for tenant, prompt in prompts.items():
            world.route(f"{tenant}-{number}", tenant=tenant, prompt=prompt)
    served = dict.fromkeys(prompts, 0)
    bound = 2 * max(INPUT_WEIGHT * 500, OUTPUT_WEIGHT * 2 * 600)
    for _ in range(300):
        first = running.pop(0)
        tenant = first.step.partition("-")[0]
        after = world.take(ended(first.step, 1, "a", output_tokens=outputs.get(tenant, 0)))
        if tenant in served:
            served[tenant] += INPUT_WEIGHT * prompts[tenant] + OUTPUT_WEIGHT * outputs[tenant]
        running.append(one(StepDispatched, after))
        assert abs(served["long"] - served["short"]) <= bound
    assert min(served.values()) > 5 * bound


def test_beyond_the_limit_the_tenant_that_was_served_most_loses_its_newest_step() -> None:
    world = World(order="vtc", queue_max=3)
    world.join("a", slots=1)
    world.route("x0", tenant="x", prompt=1_000)
    world.route("y0", tenant="y", prompt=10)
    world.route("x1", tenant="x", prompt=1_000)
    world.route("x2", tenant="x", prompt=1_000)
    world.state.ledger.tenants["y"].counter = 0  # type: ignore[index]
    closed = one(StepClosed, world.route("y1", tenant="y", prompt=10))
    assert (closed.step, closed.problem.reason) == ("x2", Reason.QUEUE_FULL)
    assert [key[2] for key in world.state.queues[MODEL].keys] == ["x1", "y0", "y1"]


def test_tenants_are_forgotten_when_they_are_many_but_not_while_they_wait() -> None:
    world = World(order="vtc", queue_max=100_000)
    world.route("waits", tenant="waits", model="another")
    for number in range(TENANTS_MAX + 5):
        world.take(routed(f"s{number}", tenant=f"t{number}"))
        world.take(ended(f"s{number}", 1, "a"))
    assert len(world.state.ledger.tenants) == TENANTS_MAX
    assert "waits" in world.state.ledger.tenants
