"""What a connection does at its limits: nothing waits for ever, nothing fails unheard, and who hears nothing any more ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from leak import Leak
from nats.aio.msg import Msg

from shared.runtime import embedded_nats
from shared.runtime import publisher as publishing
from shared.runtime.bus import Bus, BusConfig, BusError
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.lifecycle import while_connected
from shared.runtime.publisher import StoreError, TooLarge, WrongLastSequence

LIMIT_S = 20.0


async def test_a_message_whose_headers_take_it_over_the_limit_does_not_end_the_connection(bus: Bus) -> None:
    with pytest.raises(TooLarge):
        await bus.store("legato.cancel.large", b"x" * bus.client.max_payload, msg_id="large")
    largest = await bus.store("legato.submit.large", b"x" * bus.publisher.message_bytes_max, msg_id="y" * 200, trace="z" * 55)
    assert (await asyncio.wait_for(largest, LIMIT_S)).seq == 1
    assert not bus.closed.is_set()


async def test_a_process_whose_connection_is_closed_for_good_stops(bus: Bus) -> None:
    running = asyncio.create_task(while_connected(bus, asyncio.sleep(3_600)))
    bus.client._transport.write(b"PUB too.large 99999999\r\n")  # type: ignore[union-attr]
    with pytest.raises(BusError, match="closed the connection for good"):
        await asyncio.wait_for(running, LIMIT_S)


async def test_a_server_with_too_little_disk_is_told_how_much_the_streams_reserve(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_nats, "CONFIG", embedded_nats.CONFIG.replace('/store"', '/store", max_file_store: 1GB'))
    server = EmbeddedNats(server_directory / "small")
    await server.start()
    try:
        bus = await Bus.connect(BusConfig(url=server.url), "test")
        with pytest.raises(BusError, match=r"they reserve 16\.5 GiB .*max_file_store"):
            await bus.ensure_streams()
        await bus.close()
    finally:
        await server.stop()


# On uvloop, as all processes run: asyncio's own loop takes what is written to a closed connection.
LEAVING = """
import sys, uvloop
from shared.runtime import bus
from shared.runtime.bus import Bus, BusConfig

async def main():
    bus.CLOSE_TIMEOUT_S = 0.2
    leaving = await Bus.connect(BusConfig(url=sys.argv[1]), "leaving")
    print("connected", flush=True)
    sys.stdin.readline()
    await leaving.close()
    print("closed", flush=True)

uvloop.run(main())
"""


async def test_a_connection_is_closed_whatever_the_server_does_meanwhile(fresh_nats: EmbeddedNats) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LEAVING, fresh_nats.url, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), LIMIT_S) == b"connected\n"
    os.kill(fresh_nats.pid, signal.SIGSTOP)
    process.stdin.write(b"\n")
    await asyncio.sleep(0.5)  # by then it waits for no answer any more
    os.kill(fresh_nats.pid, signal.SIGKILL)
    printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert (printed, process.returncode) == (b"closed\n", 0)


async def test_what_a_process_returns_and_raises_passes(bus: Bus) -> None:
    async def failing() -> None:
        raise ZeroDivisionError

    await while_connected(bus, asyncio.sleep(0))
    with pytest.raises(ZeroDivisionError):
        await while_connected(bus, failing())


async def test_whoever_waits_for_an_acknowledgement_waits_for_a_limited_time_while_nats_is_away(
    bus: Bus, fresh_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "GIVE_UP_AFTER_S", 0.5)
    await fresh_nats.stop(0)
    future = await bus.store("legato.cancel.a", b"{}")
    with pytest.raises(StoreError):
        await asyncio.wait_for(future, LIMIT_S)


async def test_whoever_waits_for_room_is_told_when_there_is_none(
    bus: Bus, fresh_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "IN_FLIGHT_MAX", 2)
    await fresh_nats.stop(0)
    for _ in range(2):
        await bus.store("legato.cancel.a", b"{}")
    monkeypatch.setattr(publishing, "GIVE_UP_AFTER_S", 0.05)
    with pytest.raises(StoreError):
        await asyncio.wait_for(bus.store("legato.cancel.a", b"{}"), LIMIT_S)


async def test_an_error_in_the_handling_of_a_message_is_logged(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Msg) -> None:
        raise ZeroDivisionError("planted")

    await bus.subscribe("failing", fail)
    await bus.publish("failing", b"")
    async with asyncio.timeout(LIMIT_S):
        while "the handling of a message failed" not in caplog.messages:  # noqa: ASYNC110  a log cannot be awaited
            await asyncio.sleep(0.01)


async def test_streams_are_waited_for_while_jetstream_does_not_answer(fresh_nats: EmbeddedNats) -> None:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")
    await fresh_nats.stop(0)
    ensuring = asyncio.create_task(bus.ensure_streams())
    await fresh_nats.start()
    await asyncio.wait_for(ensuring, LIMIT_S)
    await bus.close()


async def test_a_message_is_sent_again_at_growing_distances() -> None:
    pending = publishing._Pending("subject", b"", "", b"", asyncio.get_running_loop().create_future(), first=0.0, sent=100.0)
    distances = []
    for pending.times in range(1, 7):
        distances.append(pending.due - pending.sent)
    assert distances == [2, 4, 8, 16, 16, 16]
    assert sum(distances) < publishing.GIVE_UP_AFTER_S


async def test_a_message_that_was_stored_but_not_acknowledged_is_no_other_writers(fresh_nats: EmbeddedNats, bus: Bus) -> None:
    wire = Leak(int(fresh_nats.url.rpartition(":")[2]))
    writer = await Bus.connect(BusConfig(url=await wire.open()), "writer")
    first = await (await writer.store("legato.outbox.a", b"1", msg_id="1", expect_last=0))
    wire.swallowing = True
    second = await writer.store("legato.outbox.a", b"2", msg_id="2", expect_last=first.seq)
    async with asyncio.timeout(LIMIT_S):
        while not wire.swallowed:  # noqa: ASYNC110  it is counted elsewhere
            await asyncio.sleep(0)
    wire.cut()
    ack = await asyncio.wait_for(second, LIMIT_S)
    assert (ack.seq, ack.duplicate) == (first.seq + 1, True)
    third = await writer.store("legato.outbox.a", b"3", msg_id="3", expect_last=ack.seq)
    assert (await asyncio.wait_for(third, LIMIT_S)).seq == ack.seq + 1
    await writer.close()
    await wire.close()


async def test_another_writers_message_is_still_a_refusal(bus: Bus) -> None:
    first = await (await bus.store("legato.outbox.a", b"1", msg_id="1", expect_last=0))
    for msg_id in ("other", ""):
        with pytest.raises(WrongLastSequence):
            await asyncio.wait_for(await bus.store("legato.outbox.a", b"2", msg_id=msg_id, expect_last=0), LIMIT_S)
    await (await bus.store("legato.outbox.a", b"2", msg_id="2", expect_last=first.seq))
    with pytest.raises(WrongLastSequence):
        await asyncio.wait_for(await bus.store("legato.outbox.a", b"1", msg_id="1", expect_last=0), LIMIT_S)
