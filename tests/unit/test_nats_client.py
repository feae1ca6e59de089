"""Headers are read as nats-server and anybody else writes them; bytes that are none hurt nobody."""

import asyncio
import inspect
import pkgutil
from importlib import import_module
from types import ModuleType

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.nats_client import WAITING, NatsClient, read_headers, write_headers


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b"NATS/1.0\r\nNats-Msg-Id: a.1\r\ntraceparent:00-1-2-01\r\n\r\n", {"Nats-Msg-Id": "a.1", "traceparent": "00-1-2-01"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
            {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": "7"},
        ),
        (b"NATS/1.0\r\nurl: http://a:1\r\nno header\r\n\r\n", {"url": "http://a:1"}),
        (b"NATS/1.0\r\nname: \xff\r\n\r\n", {"name": "\ufffd"}),
    ],
)
def test_headers_are_read_by_name(raw: bytes, headers: dict[str, str]) -> None:
    assert read_headers(raw) == headers


@given(st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z-]{0,20}", fullmatch=True), st.text(max_size=30)))
def test_headers_are_read_as_they_were_written_and_none_can_end_another(headers: dict[str, str]) -> None:
    written = write_headers(headers)
    assert read_headers(written) == {name: value.replace("\r", " ").replace("\n", " ").strip() for name, value in headers.items()}
    assert written.count(b"\r\n") == (len(headers) + 2 if headers else 0)


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd(raw: bytes) -> None:
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in read_headers(raw).items())


@pytest.mark.parametrize("module", WAITING, ids=lambda module: module.__name__)
async def test_a_cancellation_is_heard_in_the_turn_in_which_the_answer_comes(module: ModuleType) -> None:
    answer = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(module.asyncio.wait_for(answer, 60.0))
    await asyncio.sleep(0)
    answer.set_result(None)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_cancellation_is_heard_while_the_socket_takes_no_more() -> None:
    client = NatsClient()
    client._status, client._flush_queue = NatsClient.CONNECTED, asyncio.Queue(1)
    client._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
    client._flusher_task = asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(client._flush_pending())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    client._flusher_task.cancel()
    assert waiting.cancelled()


async def test_who_waits_in_vain_is_told_so() -> None:
    with pytest.raises(TimeoutError):
        await WAITING[0].asyncio.wait_for(asyncio.Event().wait(), 0.001)


def test_no_module_of_nats_py_that_waits_is_left_out() -> None:
    names = [name for _, name, _ in pkgutil.walk_packages(nats.__path__, "nats.")]
    modules = [module for name in names if (module := import_module(name)) and "asyncio.wait_for(" in inspect.getsource(module)]
    assert set(modules) == set(WAITING)
