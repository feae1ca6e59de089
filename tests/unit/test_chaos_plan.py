"""The storm of `make chaos`: what is struck, what is made of what readers heard, and that what is wrong is found."""

from itertools import pairwise

import pytest

from bench.chaos.asks import Asks, simulated
from bench.chaos.pauses import Loss, pauses
from bench.chaos.plan import REST_S, Blow, Victims, Way, plan
from bench.chaos.readers import Heard, Reading, Wrong
from bench.chaos.run import Storm
from bench.chaos.strikes import Struck
from legato.plan import plan as planned
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import End, Output

VICTIMS = Victims(workers=["worker-0", "worker-1", "worker-2"], others=["nats", "postgres", "scheduler-0"])
STEP = StepId("a")
MS = 1_000_000


def test_a_seed_is_a_storm() -> None:
    assert plan(7, 60, VICTIMS) == plan(7, 60, VICTIMS)
    assert plan(7, 60, VICTIMS) != plan(8, 60, VICTIMS)
    longer = plan(7, 90, VICTIMS)
    assert longer[: len(plan(7, 60, VICTIMS))] == plan(7, 60, VICTIMS), "a longer storm begins like a shorter one"


@pytest.mark.parametrize("seed", range(50))
def test_victims_rest_and_one_worker_is_left_alone(seed: int) -> None:
    blows = plan(seed, 120, VICTIMS)
    assert all(before.at_s <= after.at_s for before, after in pairwise(blows))
    for victim in {blow.victim for blow in blows}:
        assert all(before.end_s + REST_S <= after.at_s for before, after in pairwise(each for each in blows if each.victim == victim))
    for blow in blows:
        in_trouble = {each.victim for each in blows if each.on_worker and each.at_s <= blow.at_s < each.end_s}
        assert len(in_trouble) < len(VICTIMS.workers)


def test_everything_is_struck_in_every_way_before_long() -> None:
    victims = Victims(workers=VICTIMS.workers, others=VICTIMS.others, engines=VICTIMS.workers)
    struck = {(blow.victim, blow.engine, blow.way) for blow in plan(1, 600, victims)}
    assert struck == {(name, False, way) for name in (*victims.workers, *victims.others) for way in Way} | {
        (name, True, way) for name in victims.workers for way in (Way.KILL, Way.PAUSE)
    }


@pytest.mark.parametrize("seed", range(50))
def test_one_worker_of_each_engine_is_left_alone(seed: int) -> None:
    engines = ["worker-0", "worker-1"]
    blows = plan(seed, 120, Victims(workers=[*engines, "worker-2", "worker-3"], others=VICTIMS.others, engines=engines))
    for blow in blows:
        in_trouble = {each.victim for each in blows if each.on_worker and each.at_s <= blow.at_s < each.end_s + REST_S}
        assert len(in_trouble.intersection(engines)) <= 1
        assert len(in_trouble.difference(engines)) <= 1
    assert {blow.victim for blow in blows if blow.engine} == set(engines)


def test_a_mixed_fleet_has_workers_with_either_engine() -> None:
    storm = Storm(seed=1, engine="mixed", workers=3)
    assert (storm.with_sglang, storm.simulated) == (["worker-0", "worker-1"], ["worker-2", "worker-3", "worker-4"])
    launched = [*planned(storm.fleet), *storm.besides]
    engines = [(each.name, each.settings[0]) for each in launched if each.service == "worker"]
    assert engines == [(name, "worker.engine=sglang") for name in storm.with_sglang] + [
        (name, "worker.engine=simulated") for name in storm.simulated
    ]


@pytest.mark.parametrize("engine", ["simulated", "sglang"])
def test_other_fleets_have_workers_with_one_engine(engine: str) -> None:
    storm = Storm(seed=1, engine=engine, workers=2)
    assert [*storm.with_sglang, *storm.simulated] == ["worker-0", "worker-1"]
    assert (bool(storm.with_sglang), storm.besides) == (engine == "sglang", [])


def test_a_lone_worker_is_struck_all_the_same() -> None:
    assert any(blow.on_worker for blow in plan(1, 60, Victims(workers=["worker-0"], others=["nats"])))


def test_asks_follow_from_the_seed() -> None:
    one, other, third = Asks(1), Asks(1), Asks(2)
    asked = [one.next() for _ in range(5)]
    assert asked == [other.next() for _ in range(5)]
    assert asked != [third.next() for _ in range(5)]
    assert len({step for step, _ in asked}) == 5


def test_choices_of_a_request_answer_by_seeds_of_their_own() -> None:
    first, second = Asks(1).choices(2)
    assert (first.prompt, first.max_tokens, first.seed) == (second.prompt, second.max_tokens, second.seed)
    assert first.expected != second.expected
    assert len(first.expected) == len(second.expected) == first.max_tokens


# --- what a reader hears -----------------------------------------------------------------------------------------------------

ASK = simulated("Hello", 9)
GOOD = End(status=Status.SUCCEEDED)


def heard(*outputs: Output) -> list[Wrong]:
    reading = Reading(step=STEP, ask=ASK)
    for output in outputs:
        reading.hear(output)
    return [fault.wrong for fault in reading.faults]


def said(begin: int, end: int, ending: End | None = None, attempt: int = 1) -> Output:
    text = bytes(ASK.expected[begin:end]).decode(errors="replace")
    return Output(attempt=attempt, offset=begin, tokens=ASK.expected[begin:end], text=text, end=ending)


def test_a_whole_stream_is_sound() -> None:
    assert heard(said(0, 4), said(4, 6, attempt=2), said(6, 9, GOOD, attempt=2)) == []


def test_what_is_wrong_with_a_stream_is_named() -> None:
    assert heard(said(0, 4), said(5, 9))[0] is Wrong.GAP
    assert heard(said(0, 4), said(3, 9))[0] is Wrong.REPEAT
    assert heard(Output(attempt=1, tokens=[1, 2, 3])) == [Wrong.DIFFERENT]
    assert heard(said(0, 9), Output(attempt=1, offset=9, text="!", end=GOOD)) == [Wrong.DIFFERENT]
    assert heard(said(0, 4), Output(attempt=1, offset=4, end=GOOD)) == [Wrong.DIFFERENT], "too short"
    failed = End(status=Status.FAILED, problem=Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="four"))
    assert heard(said(0, 4), Output(attempt=1, offset=4, end=failed)) == [Wrong.LOST]


# --- pauses ------------------------------------------------------------------------------------------------------------------


def struck(victim: str, way: Way, at_ms: int, until_ms: int = 0) -> Struck:
    return Struck(Blow(at_s=0, victim=victim, way=way), at_ns=at_ms * MS, until_ns=max(at_ms, until_ms) * MS)


def stream(*times: tuple[int, int]) -> dict[StepId, list[Heard]]:
    """(milliseconds, attempt) each."""
    return {STEP: [Heard(at * MS, attempt, number) for number, (at, attempt) in enumerate(times)]}


ATTEMPTS = {(STEP, 1): "worker-0", (STEP, 2): "worker-1"}


def test_a_kill_is_seen_until_another_attempt_goes_on() -> None:
    beats = stream((0, 1), (50, 1), (52, 1), (700, 2), (1_800, 2))
    found = pauses(beats, ATTEMPTS, [struck("worker-0", Way.KILL, 51)])
    assert [(pause.loss, pause.ms, pause.mixed) for pause in found] == [(Loss.UNPLANNED, 648, False)]


def test_a_planned_loss_is_seen_where_the_attempt_changes_however_late() -> None:
    beats = stream((0, 1), (50, 1), (100, 1), (5_000, 1), (5_300, 2), (9_000, 2))
    assert [pause.ms for pause in pauses(beats, ATTEMPTS, [struck("worker-0", Way.STOP, 60)])] == [4_900]


def test_a_pause_of_the_worker_ends_with_it() -> None:
    beats = stream((0, 1), (50, 1), (900, 1), (3_000, 1))
    found = pauses(beats, ATTEMPTS, [struck("worker-0", Way.PAUSE, 55, 850)])
    assert [(pause.loss, pause.ms) for pause in found] == [(Loss.PAUSED, 850)]


def test_a_blow_on_another_worker_or_outside_of_the_stream_concerns_nobody() -> None:
    beats = stream((10, 1), (50, 1), (100, 1))
    blows = [struck("worker-1", Way.KILL, 60), struck("worker-0", Way.KILL, 5), struck("worker-0", Way.KILL, 200)]
    assert pauses(beats, ATTEMPTS, [*blows, Struck(Blow(at_s=0, victim="worker-0", way=Way.KILL), 60 * MS, 60 * MS, missed=True)]) == []


def test_two_blows_in_one_silence_are_told_apart_from_the_others() -> None:
    beats = stream((0, 1), (50, 1), (700, 2), (7_000, 2), (7_050, 2))
    blows = [struck("worker-0", Way.KILL, 51), struck("nats", Way.PAUSE, 20, 300), struck("postgres", Way.KILL, 7_040)]
    found = pauses(beats, ATTEMPTS, blows)
    assert [(pause.loss, pause.mixed) for pause in found] == [(Loss.UNPLANNED, True), (Loss.SERVER, True), (Loss.OTHER, False)]


def test_a_blow_elsewhere_makes_no_silence_longer() -> None:
    beats = stream((0, 1), (50, 1), (700, 2), (750, 2))
    blows = [struck("worker-0", Way.KILL, 51), struck("worker-7", Way.KILL, 60), struck("gateway-0", Way.KILL, 70)]
    first, *_ = pauses(beats, ATTEMPTS, blows)
    assert (first.loss, first.mixed) == (Loss.UNPLANNED, False)
