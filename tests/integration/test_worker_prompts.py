"""How a prompt comes to a worker: handed over by the server, fetched, or late."""

from collections.abc import AsyncIterator

import pytest
from worker_rig import expected, listed, working

from services.worker import prompts
from shared.contracts import subjects
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.outcomes import Status
from shared.contracts.streams import PROMPTS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.ids import new_id
from shared.runtime.nats_client import write_headers


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


async def test_a_prompt_that_is_stored_after_the_dispatch_is_waited_for(bus: Bus) -> None:
    prompt = list(b"Late, but not lost.")
    async with working(bus) as rig:
        step = StepId(new_id())
        await rig.dispatch(step, accepted_ns=now_ns())
        await listed(rig, step, True)
        await rig.prompt(prompt, step)
        report = await rig.ended(step)
    assert (report.status, report.tokens) == (Status.SUCCEEDED, expected(prompt, 40))


async def test_a_prompt_that_the_server_hands_over_is_not_asked_for(fresh_nats: EmbeddedNats) -> None:
    prompt = list(b"Hand in hand.")
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    async with working(bus) as rig:
        step = await rig.prompt(prompt)
        await bus.hand_last(PROMPTS.name, subjects.prompt(step), subjects.handed_to(rig.worker, step))
        await bus.client.flush()
        await bus.js.purge_stream(PROMPTS.name)
        await rig.dispatch(step)
        report = await rig.ended(step)
    await bus.close()
    assert (report.status, report.tokens) == (Status.SUCCEEDED, expected(prompt, 40))


async def test_what_is_handed_over_and_is_not_the_prompt_is_fetched_instead(bus: Bus) -> None:
    prompt = list(b"Signed and sealed.")
    async with working(bus) as rig:
        for forged in (b"no prompt", ENCODER.encode({"tokens": [1, 2]}), b"[" * 5_000):
            step = await rig.prompt(prompt)
            headers = {"Nats-Stream": PROMPTS.name, "Nats-Subject": subjects.prompt(step)}
            await bus.client.publish(subjects.handed_to(rig.worker, step), forged, headers=headers)
            await bus.client.publish(subjects.handed_to(rig.worker, step), ENCODER.encode({"tokens": prompt[::-1]}))  # nobody's word
            await bus.client.flush()
            await rig.dispatch(step, prompt_tokens=len(prompt))
            report = await rig.ended(step)
            assert (report.status, report.tokens) == (Status.SUCCEEDED, expected(prompt, 40))


async def test_prompts_that_nobody_asks_for_are_kept_within_bounds(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "KEPT_MAX", 8)
    monkeypatch.setattr(prompts, "KEPT_BYTES_MAX", 1_000)
    kept = prompts.Prompts(bus, WorkerId("w"))

    def stored(step: str) -> bytes:
        return write_headers({"Nats-Stream": PROMPTS.name, "Nats-Subject": subjects.prompt(StepId(step))})

    for number in range(20):
        kept._on_prompt(subjects.handed_to(WorkerId("w"), StepId(f"s{number}")), "", b"x" * 10, stored(f"s{number}"))
    assert list(kept._kept) == [f"s{number}" for number in range(12, 20)]
    kept._on_prompt(subjects.handed_to(WorkerId("w"), StepId("large")), "", b"x" * 950, stored("large"))
    assert (list(kept._kept), kept._kept_bytes) == (["s15", "s16", "s17", "s18", "s19", "large"], 1_000)
    kept._on_prompt(subjects.handed_to(WorkerId("w"), StepId("absent")), "", b"", write_headers({"Status": "404"}))
    assert "absent" not in kept._kept


async def test_an_attempt_that_starts_while_nats_is_away_waits_for_it(fresh_nats: EmbeddedNats) -> None:
    prompt = list(b"Da capo.")
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await bus.ensure_streams()
    async with working(bus) as rig:
        step = await rig.prompt(prompt)
        await bus.js.delete_stream(PROMPTS.name)
        await rig.dispatch(step, accepted_ns=now_ns())
        await listed(rig, step, True)
        await bus.ensure_streams()
        await rig.prompt(prompt, step)
        report = await rig.ended(step)
    await bus.close()
    assert (report.status, report.tokens) == (Status.SUCCEEDED, expected(prompt, 40))
