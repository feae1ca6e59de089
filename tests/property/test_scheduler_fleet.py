"""What the scheduler keeps of its workers at hand is what a plain look at all of them says, and the few it looks at hold the best."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.book import EVERYBODY, State, Step, Worker
from services.scheduler.decide import MACHINE
from services.scheduler.fleet import refreshed
from services.scheduler.load import PROMPT_TOKENS, Load, Room, busy_slots
from services.scheduler.narrow import narrowed
from services.scheduler.placement import least_finish
from services.scheduler.policies.filter_ready import is_ready
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, WorkerState
from shared.contracts.ids import ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import Job
from tests.scheduler_world import MS, World, beat, cancel, ended, gone, matched, registered, routed

WORKERS = [f"w{number}" for number in range(6)]
STEPS = [f"s{number}" for number in range(20)]
LEASE_MS = 3_000
NOW_NS = 50 * MS
workers, steps, small = st.sampled_from(WORKERS), st.sampled_from(STEPS), st.integers(0, 3)
commands = st.one_of(
    st.tuples(st.just("route"), steps, st.sampled_from([-20, 0, 0, 20]), st.integers(1, 400)),
    st.tuples(st.just("match"), steps, st.dictionaries(workers, st.integers(1, 20))),
    st.tuples(st.just("end"), st.integers(0, 100), st.sampled_from(list(Reason)), st.booleans()),
    st.tuples(st.just("beat"), workers, st.booleans(), small, st.sampled_from(list(WorkerState))),
    st.tuples(st.just("cancel"), steps),
    st.tuples(st.just("register"), workers, st.integers(1, 4), st.integers(5, 90)),
    st.tuples(st.just("gone"), workers),
    st.tuples(st.just("wait"), st.sampled_from([1, 10, 700, 2_000, 6_000])),
    st.tuples(st.just("turn back the clock"), st.sampled_from([10, 2_000, 20_000])),
    st.tuples(st.just("reload")),
)


class Checked(World):
    """After each input the fleet at hand is compared with all workers."""

    def __init__(self) -> None:
        super().__init__(queue_max=8, lease_ms=LEASE_MS)

    def take(self, event: Message) -> list[Message]:
        outputs = super().take(event)
        check(self.state, self.now_ns)
        return outputs

    def do(self, name: str, *about: Any) -> None:
        placed = [(step.id, step.attempt, step.worker) for step in self.state.steps.values() if step.worker]
        if name == "route":
            self.take(routed(about[0], priority=about[1], prompt=about[2]))
        elif name == "match":
            self.take(matched(about[0], **about[1]))
        elif name == "end" and placed:
            status = Status.FAILED if about[2] else Status.SUCCEEDED
            self.take(ended(*placed[about[0] % len(placed)], status, reason=about[1], retryable=about[2]))
        elif name == "beat":
            known = self.state.workers.get(about[0])
            running = list(known.placed.items()) if known and about[1] else []
            self.take(beat(about[0], *running, state=about[3], slots_used=about[2], blocks_used=9 * about[2]))
        elif name == "cancel":
            self.take(cancel(about[0]))
        elif name == "register":
            self.take(registered(about[0], slots=about[1], blocks=about[2]))
        elif name == "gone":
            self.take(gone(about[0]))
        elif name == "wait":
            self.wait(about[0])
        elif name == "turn back the clock":
            self.now_ns -= about[0] * MS
        elif name == "reload":
            self.reload()


def check(state: State, now_ns: int) -> None:
    """By the plain way over all workers and steps."""
    fleet = refreshed(state, now_ns, LEASE_MS * MS)
    assert set(fleet.counted) == set(state.workers)
    assert set(fleet.rooms) == {worker.model for worker in state.workers.values()}
    for model, room in fleet.rooms.items():
        mine = [worker for worker in state.workers.values() if worker.model == model]
        ready = [worker for worker in mine if is_ready(worker, state.heard[worker.id], now_ns, LEASE_MS * MS)]
        assert room.known == {worker.id: worker for worker in mine}
        assert (room.ready, room.running) == (len(ready), sum(len(worker.placed) for worker in mine))
        assert room.slots == sum(worker.capacity.slots for worker in ready)
        assert room.busy == sum(min(busy_slots(worker), worker.capacity.slots) for worker in ready)
        free = [Load(worker, state.heard[worker.id]) for worker in ready if busy_slots(worker) < worker.capacity.slots]
        assert [told(load) for load in room.listed()] == sorted(told(load) for load in free)
        check_listed(room)
    running: dict[int, dict[int, dict[StepId, None]]] = {}
    for step in state.steps.values():
        if step.worker:
            running.setdefault(step.job.priority, {}).setdefault(step.job.prompt_tokens // PROMPT_TOKENS, {})[step.id] = None
    assert fleet.running == running
    for step in state.steps.values():
        if step.queued and (room := fleet.rooms.get(step.job.model)) is not None:
            few, all_of_them = narrowed(step, room, now_ns), room.listed()
            assert least_finish(step, few, room.ready, now_ns) == least_finish(step, all_of_them, room.ready, now_ns)


def check_listed(room: Room) -> None:
    loads = room.listed()
    assert room.free == sum(load.slots - load.busy for load in loads)
    assert not room.filled
    rows = {load.alike: sorted((each.computed_ns, each.id) for each in loads if each.alike == load.alike) for load in loads}
    assert room.rows == rows
    for tokens in (0, 160, 500):
        roomy = [load for load in loads if load.free_blocks * load.block_tokens >= tokens]
        assert room.roomy(tokens) == len(roomy)
        assert sorted(load.id for load in room.roomiest(len(roomy))) == [load.id for load in roomy]


def told(load: Load) -> tuple[Any, ...]:
    return load.id, *(getattr(load, name) for name in Load.__slots__)


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, max_size=80))
def test_what_is_kept_at_hand_is_what_all_workers_say(script: list[tuple[Any, ...]]) -> None:
    world = Checked()
    for worker in WORKERS[:3]:
        world.do("register", worker, 2, 60)
        world.do("beat", worker, True, 0, WorkerState.READY)
    for command in script:
        world.do(*command)


sizes = st.tuples(st.integers(2, 3), st.sampled_from([30, 60]), st.sampled_from([16, 32]), st.sampled_from([0.0, 1000.0]))
computed = st.sampled_from([0, 0, 0, 10, 20, 51, 150, 850])  # ms, some of them in the past
uses = st.tuples(st.sampled_from([0, 0, 1, 3]), st.sampled_from([0, 0, 20, 25, 45]), computed)
one_kind = sizes.flatmap(lambda size: st.lists(st.tuples(st.just(size), uses), min_size=20, max_size=60))
fleets = st.one_of(one_kind, st.lists(st.tuples(sizes, uses), min_size=1, max_size=60))
amounts = st.lists(st.sampled_from([0, 16, 32, 32, 32, 96, 320]), min_size=20, max_size=60)


def fleet_of(some: list[Any]) -> State:
    """Its workers are numbered in no order."""
    state = MACHINE.start(World().config)
    for number, ((slots, blocks, block_tokens, rate), (foreign, reserved, computed)) in enumerate(some):
        worker = Worker(
            id=WorkerId(f"w{number * 7 % 61:02d}"),
            epoch=1,
            model=ModelName("m"),
            capacity=Capacity(blocks=blocks, slots=slots, prefill_tokens_per_s=rate),
            block_tokens=block_tokens,
            state=WorkerState.READY,
            beaten=True,
            foreign_slots=foreign,
            reserved_blocks=reserved,
            computed_ns=computed * MS,
        )
        state.workers[worker.id], state.heard[worker.id] = worker, 0
    return state


def waiting(prompt: int, output: int) -> Step:
    job = Job(model=ModelName("m"), prompt_tokens=prompt, max_tokens=output)
    return Step(id=StepId("s"), job=job, workflow=WorkflowId(""), tenant=TenantId(""), trace="", arrival=1, routed_ns=0)


@settings(max_examples=150, deadline=None)
@given(fleets, st.tuples(amounts, st.sampled_from([0, 0, 32, 96])), st.integers(1, 800), st.sampled_from([1, 10, 512]), small)
def test_the_few_that_are_looked_at_hold_the_best_of_all(
    some: list[Any], held: tuple[list[int], int], prompt: int, output: int, failed: int
) -> None:
    step, (named, others) = waiting(prompt, output), held
    step.cached = {WorkerId(f"w{number:02d}"): tokens for number, tokens in enumerate(named) if tokens != others}
    if others:
        step.cached[EVERYBODY] = others
    step.failed_on, step.failed_ns = WorkerId(f"w{failed:02d}"), 1
    room = refreshed(fleet_of(some), NOW_NS, LEASE_MS * MS).rooms[ModelName("m")]
    assert least_finish(step, narrowed(step, room, NOW_NS), room.ready, NOW_NS) == least_finish(step, room.listed(), room.ready, NOW_NS)


def test_few_of_many_equal_workers_are_looked_at() -> None:
    step, size = waiting(400, 10), (2, 60, 16, 1000.0)
    room = refreshed(fleet_of([(size, (0, 0, 0))] * 60), NOW_NS, LEASE_MS * MS).rooms[ModelName("m")]
    step.cached = dict.fromkeys(room.known, 320)
    assert len(narrowed(step, room, NOW_NS)) == 1


def test_of_equal_workers_that_hold_less_than_the_rest_one_is_looked_at() -> None:
    step, size = waiting(400, 10), (2, 60, 16, 1000.0)
    room = refreshed(fleet_of([(size, (0, 0, 0))] * 60), NOW_NS, LEASE_MS * MS).rooms[ModelName("m")]
    step.cached = {worker: 0 if number < 30 else 320 for number, worker in enumerate(sorted(room.known))}
    assert [load.id for load in narrowed(step, room, NOW_NS)] == ["w00", "w30"]


def test_busier_workers_are_not_looked_at_where_an_idle_one_has_computed_all() -> None:
    step, size = waiting(400, 10), (3, 60, 16, 1000.0)
    some = [(size, (busy, 0, computed)) for busy, computed in ((0, 30), (1, 20), (2, 0))] * 4
    room = refreshed(fleet_of(some), NOW_NS, LEASE_MS * MS).rooms[ModelName("m")]
    assert [load.busy for load in narrowed(step, room, NOW_NS)] == [0]


def test_steps_that_fit_only_beside_what_is_cached_find_their_worker() -> None:
    step, size = waiting(400, 10), (2, 60, 16, 1000.0)
    room = refreshed(fleet_of([(size, (0, 54, computed)) for computed in range(20)]), NOW_NS, LEASE_MS * MS).rooms[ModelName("m")]
    step.cached = dict.fromkeys(room.known, 320)
    choice = least_finish(step, narrowed(step, room, NOW_NS), room.ready, NOW_NS)
    assert choice is not None
    assert choice.load.computed_ns == 0


def test_after_a_restart_a_clock_that_went_back_is_still_known_of() -> None:
    world = World()
    for worker in ("a", "b"):
        world.join(worker)
    world.now_ns -= 2_000 * MS
    world.beat("a")  # as it seems, before "b" was heard
    world.reload()
    check(world.state, world.now_ns)
    world.now_ns += LEASE_MS * MS
    check(world.state, world.now_ns)


def test_when_more_steps_may_wait_in_engines_the_free_places_are_counted_anew() -> None:
    state = fleet_of([((2, 60, 16, 1000.0), (0, 0, 0))] * 3)
    for waiting_max in (0, 2, 1):
        room = refreshed(state, NOW_NS, LEASE_MS * MS, waiting_max).rooms[ModelName("m")]
        assert room.free == 3 * (2 + waiting_max)
