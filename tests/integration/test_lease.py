"""One process drives a partition, whatever NATS does; and no answer that was lost costs it the lease."""

import asyncio

import pytest

from shared.contracts.streams import LEASES_BUCKET
from shared.runtime import lease as leases
from shared.runtime.bus import Bus
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.lease import Lease, LeaseLost

KEY = "service.partition"
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.1)
    monkeypatch.setattr(leases, "ANSWER_S", 0.3)


async def acquired(bus: Bus, instance: str) -> Lease:
    lease = await asyncio.wait_for(Lease.acquire(bus, KEY, instance, asyncio.Event()), LIMIT_S)
    assert lease is not None
    return lease


async def renewed(bus: Bus) -> None:
    """The key is written twice more: the first of them may have been on its way."""
    bucket = await bus.js.key_value(LEASES_BUCKET)
    first = (await bucket.get(KEY)).revision or 0
    async with asyncio.timeout(LIMIT_S):
        while ((await bucket.get(KEY)).revision or 0) < first + 2:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.02)


async def test_a_holder_whose_renewal_was_stored_but_not_answered_stays_the_holder(bus: Bus) -> None:
    lease = await acquired(bus, "one")
    bucket = await bus.js.key_value(LEASES_BUCKET)
    await bucket.update(KEY, lease._value, last=lease._revision)
    keeping = asyncio.create_task(lease.keep())
    await renewed(bus)
    assert not keeping.done()
    keeping.cancel()


async def test_a_holder_learns_that_another_process_of_its_name_has_taken_over(bus: Bus) -> None:
    keeping = asyncio.create_task((await acquired(bus, "one")).keep())
    await renewed(bus)
    second = await acquired(bus, "one")
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(keeping, LIMIT_S)
    assert second.epoch > 0


async def test_the_holder_and_who_stands_by_outlast_an_absence_of_nats(
    bus: Bus, fresh_nats: EmbeddedNats, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await acquired(bus, "one")
    keeping = asyncio.create_task(lease.keep())
    other = await Bus.connect(bus.config, "other")
    waiting = asyncio.create_task(Lease.acquire(other, KEY, "two", asyncio.Event()))
    await renewed(bus)
    await fresh_nats.stop(0)
    async with asyncio.timeout(LIMIT_S):
        while not {"lease not renewed yet", "lease not asked for yet"} <= {record.message for record in caplog.records}:
            assert not keeping.done()
            assert not waiting.done()
            await asyncio.sleep(0.02)
    await fresh_nats.start()
    await renewed(bus)
    keeping.cancel()
    await lease.release()
    second = await asyncio.wait_for(waiting, LIMIT_S)
    assert second is not None
    assert second.epoch > lease.epoch
    await other.close()
