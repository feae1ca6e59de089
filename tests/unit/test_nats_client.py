"""Headers are read as nats-server and anybody else writes them; bytes that are none hurt nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.nats_client import read_headers, write_headers


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
