"""What is known of the fleet, folded from what workers and schedulers say."""

from shared.contracts.fleet import Capacity, Hardware, ModelCard, QueueReported, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.core import catalogue
from shared.core.catalogue import KEPT_NS, Catalogue

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
SMALL = ModelName("small")
EAST, WEST = CellId("east"), CellId("west")


def registered(worker: str, *, cell: CellId = EAST, model: str = "small", epoch: int = 1, **more: object) -> WorkerRegistered:
    card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=10, context_tokens=100, block_tokens=16)
    values = {"state": WorkerState.READY, "capacity": Capacity(blocks=1, slots=1), **more}
    return WorkerRegistered(worker=WorkerId(worker), cell=cell, pool="p", epoch=epoch, card=card, **values)  # type: ignore[arg-type]


def gone(worker: str, epoch: int = 1) -> WorkerGone:
    return WorkerGone(worker=WorkerId(worker), cell=EAST, epoch=epoch)


def folded(*events: WorkerRegistered | WorkerGone | QueueReported) -> Catalogue:
    fleet = Catalogue()
    for event in events:
        catalogue.fold(fleet, event, NOW)
    return fleet


def test_a_registered_worker_serves_its_model_in_its_cell() -> None:
    fleet = folded(registered("a"), registered("b", cell=WEST))
    assert sorted(fleet.models[SMALL].cells) == [EAST, WEST]
    assert catalogue.is_served(fleet.models[SMALL].cells[EAST], NOW, SECOND)


def test_a_worker_that_is_down_drains_or_is_silent_serves_nothing() -> None:
    for state in (WorkerState.DOWN, WorkerState.DRAINING):
        fleet = folded(registered("a", state=state))
        assert not catalogue.is_served(fleet.models[SMALL].cells[EAST], NOW, SECOND)
    fleet = folded(registered("a", state=WorkerState.LOADING))
    assert catalogue.is_served(fleet.models[SMALL].cells[EAST], NOW + SECOND, SECOND)
    assert not catalogue.is_served(fleet.models[SMALL].cells[EAST], NOW + SECOND + 1, SECOND)


def test_a_model_stays_known_when_its_last_worker_goes() -> None:
    fleet = folded(registered("a"), gone("a"))
    assert fleet.models[SMALL].cells == {}
    assert fleet.places == {}


def test_the_good_bye_of_an_earlier_life_is_ignored() -> None:
    fleet = folded(registered("a", epoch=2), gone("a", epoch=1), registered("a", epoch=1, state=WorkerState.DOWN))
    assert fleet.models[SMALL].cells[EAST].workers[WorkerId("a")].state is WorkerState.READY


def test_a_worker_that_comes_back_with_another_model_leaves_the_first() -> None:
    fleet = folded(registered("a"), registered("a", model="large", epoch=2))
    assert fleet.models[SMALL].cells == {}
    assert list(fleet.models[ModelName("large")].cells[EAST].workers) == ["a"]


def test_the_fastest_worker_gives_the_models_speed() -> None:
    slow, fast = Capacity(blocks=1, slots=1, decode_tokens_per_s=20), Capacity(blocks=1, slots=1, decode_tokens_per_s=50)
    fleet = folded(registered("a", capacity=slow), registered("b", cell=WEST, capacity=fast))
    assert fleet.models[SMALL].decode_tokens_per_s == 50
    catalogue.fold(fleet, gone("b"), NOW)
    assert fleet.models[SMALL].decode_tokens_per_s == 20


def test_a_worker_that_becomes_slower_slows_its_model() -> None:
    slow, fast = Capacity(blocks=1, slots=1, decode_tokens_per_s=20), Capacity(blocks=1, slots=1, decode_tokens_per_s=50)
    fleet = folded(registered("a", capacity=slow), registered("b", capacity=fast), registered("b", capacity=fast))
    assert fleet.models[SMALL].decode_tokens_per_s == 50
    catalogue.fold(fleet, registered("b", capacity=Capacity(blocks=1, slots=1)), NOW)
    assert fleet.models[SMALL].decode_tokens_per_s == 20


def test_reports_of_cells_that_serve_nothing_are_not_kept() -> None:
    report = QueueReported(cell=WEST, model=SMALL, depth=1, waiting_tokens=1, running=1, slots=1, workers=1)
    fleet = folded(report, registered("a"), report)
    assert list(fleet.models[SMALL].cells) == [EAST]


def test_what_is_silent_for_as_long_as_the_stream_keeps_it_is_forgotten() -> None:
    fleet = folded(registered("a"))
    catalogue.expire(fleet, NOW + KEPT_NS)
    assert fleet.places
    catalogue.expire(fleet, NOW + KEPT_NS + 1)
    assert fleet == Catalogue()


def priced(worker: str, usd_per_hour: float, prefill: float, decode: float) -> WorkerRegistered:
    capacity = Capacity(blocks=1, slots=1, prefill_tokens_per_s=prefill, decode_tokens_per_s=decode)
    return registered(worker, hardware=Hardware(usd_per_hour=usd_per_hour), capacity=capacity)


def test_a_token_costs_what_it_does_on_the_dearest_worker_that_states_price_and_speed() -> None:
    fleet = folded(
        priced("a", 3_600.0, 100.0, 10.0), priced("b", 7_200.0, 400.0, 10.0), priced("c", 9_999.0, 0.0, 0.0), priced("d", 0, 1, 1)
    )
    model = fleet.models[SMALL]
    assert (model.prompt_token_usd, model.output_token_usd) == (0.01, 0.2)
    catalogue.fold(fleet, gone("b"), NOW)
    assert (model.prompt_token_usd, model.output_token_usd) == (0.01, 0.1)
    catalogue.fold(fleet, gone("a"), NOW)
    assert (model.prompt_token_usd, model.output_token_usd) == (0, 0)
