"""The list of models, from the cards of workers."""

from typing import cast

import msgspec
import pytest

from services.gateway import models as module
from services.gateway.models import Models
from shared.contracts.fleet import Capacity, ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.runtime.bus import Bus

CELL = CellId("local")
NOW_S = 1_000


def models(aliases: dict[str, str] | None = None) -> Models:
    return Models(cast(Bus, None), 35_000, aliases or {}, clock=lambda: NOW_S * 10**9)  # only `follow` needs a bus


def card(worker: str, model: str, *, state: WorkerState = WorkerState.READY, epoch: int = 1, at_s: int = NOW_S) -> bytes:
    return msgspec.json.encode(
        WorkerRegistered(
            time_ns=at_s * 10**9,
            worker=WorkerId(worker),
            cell=CELL,
            pool="default",
            epoch=epoch,
            state=state,
            card=ModelCard(name=ModelName(model), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4),
            capacity=Capacity(blocks=1, slots=1),
        )
    )


def gone(worker: str, epoch: int) -> bytes:
    return msgspec.json.encode(WorkerGone(worker=WorkerId(worker), cell=CELL, epoch=epoch))


def names(known: Models) -> list[str]:
    return [model["id"] for model in known.listing()]


def test_a_model_is_listed_once_by_name_while_any_worker_of_it_is_ready() -> None:
    known = models()
    for data in (card("w2", "b", at_s=990), card("w1", "a"), card("w3", "b"), card("w3", "b", state=WorkerState.DRAINING)):
        known.take(data)
    assert known.listing() == [
        {"id": "a", "object": "model", "created": NOW_S, "owned_by": "legato"},
        {"id": "b", "object": "model", "created": 990, "owned_by": "legato"},
    ]


def test_a_worker_that_says_good_bye_or_is_not_ready_does_not_count() -> None:
    known = models()
    for data in (card("w1", "a"), gone("w1", 1), card("w2", "b", state=WorkerState.LOADING), card("w3", "c", state=WorkerState.DOWN)):
        known.take(data)
    assert names(known) == []


def test_a_good_bye_of_an_earlier_run_does_not_hide_the_present_one() -> None:
    known = models()
    for data in (card("w1", "a", epoch=2), gone("w1", 1), card("w1", "old", epoch=1)):
        known.take(data)
    assert names(known) == ["a"]


def test_a_worker_that_stopped_repeating_its_card_is_forgotten() -> None:
    known = models()
    known.take(card("w1", "a", at_s=NOW_S - 36))
    known.take(card("w2", "b", at_s=NOW_S - 34))
    assert names(known) == ["b"]


def test_an_alias_is_listed_while_its_model_is() -> None:
    known = models({"small": "a", "large": "z"})
    known.take(card("w1", "a"))
    assert names(known) == ["a", "small"]


def test_what_cannot_be_read_is_skipped() -> None:
    known = models()
    for data in (b"", b"{}", b'{"type":"worker.registered"}', card("w1", "a")):
        known.take(data)
    assert names(known) == ["a"]


async def test_the_newest_card_of_a_model_is_known_by_its_aliases_too_and_after_its_workers_have_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOAD_TIMEOUT_S", 0.0)  # nobody reads the fleet's cards here
    known = models({"small": "m"})
    known.take(card("a", "m"))
    known.take(msgspec.json.encode(WorkerGone(worker=WorkerId("a"), cell=CELL, epoch=1)))
    found = await known.card("small")
    assert found is not None
    assert found.name == "m"
    assert await known.card("other") is None


async def test_no_more_cards_are_kept_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_TIMEOUT_S", 0.0)
    monkeypatch.setattr(module, "CARDS_MAX", 2)
    known = models()
    for name in ("a", "b", "a", "c"):
        known.take(card(f"worker-{name}", name))
    assert [await known.card(name) is not None for name in ("a", "b", "c")] == [True, False, True]
