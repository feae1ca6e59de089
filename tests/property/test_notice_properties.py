"""Whatever a source says, it is a notice, no notice, or unreadable with what would be right; never anything else."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.worker.notices import aws, azure, file, gcp
from services.worker.notices.notice import QUOTED_CHARS_MAX, REASON_CHARS_MAX, Notice, Unreadable

NOW_NS = 1_700_000_000_000_000_000
READERS: dict[str, Callable[[bytes], Notice | str | None]] = {
    "token": aws.token,
    "interruption": lambda content: aws.interruption(content, NOW_NS),
    "rebalance": lambda content: aws.rebalance(content, NOW_NS),
    "preempted": lambda content: gcp.preempted(content, NOW_NS),
    "maintenance": lambda content: gcp.maintenance(content, NOW_NS, 60),
    "losses": lambda content: azure.losses(content, "vm_0", NOW_NS),
    "file": lambda content: file.announced(content, NOW_NS, 30),
}
TIMES = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.datetimes().map(lambda moment: moment.strftime("%a, %d %b %Y %H:%M:%S GMT")),
    st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "Mon, 99 Jan 2020 00:00:00 GMT", ""]),
    st.text(max_size=20),
)
NEARLY = st.dictionaries(
    st.sampled_from(["action", "time", "noticeTime", "Events", "seconds", "why", "EventType", "Resources", "EventStatus", "NotBefore"]),
    st.one_of(
        TIMES, st.sampled_from(["terminate", "hibernate", "Preempt", "Started"]), st.floats(), st.integers(), st.none(), st.just(["vm_0"])
    ),
)
DOCUMENTS = st.one_of(
    st.binary(max_size=400),
    st.recursive(NEARLY, lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"Events": st.lists(inner, max_size=3)})).map(
        lambda value: json.dumps(value).encode()
    ),
    st.integers(1, 20_000).map(lambda depth: b"[" * depth),
    st.integers(1, 20_000).map(lambda depth: b'{"Events":[' * depth),
)


@given(st.sampled_from(sorted(READERS)), DOCUMENTS)
def test_every_answer_is_read_or_refused(reader: str, content: bytes) -> None:
    said, complaint = None, "it should be"
    try:
        said = READERS[reader](content)
    except Unreadable as error:
        complaint = str(error)
    assert "should be" in complaint
    assert len(complaint) < 10 * QUOTED_CHARS_MAX + REASON_CHARS_MAX + 300  # repr may take ten characters for one
    if isinstance(said, Notice):
        assert isinstance(said.gone_ns, int)
        assert said.cause.isprintable()
        assert said.cause


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(["terminate", "stop"]))
def test_a_time_is_kept_to_the_microsecond(moment: datetime, action: str) -> None:
    said = json.dumps({"action": action, "time": moment.isoformat()}).encode()
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=aws.interruption(said, NOW_NS).gone_ns // 1_000) == moment
