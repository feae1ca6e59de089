"""What every source says in its own words: this machine will be gone, and when. Pure."""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from shared.core.errors import LegatoError

SECOND_NS = 1_000_000_000
QUOTED_CHARS_MAX = 120  # of an answer that cannot be read, in the log
REASON_CHARS_MAX = 300  # of what a decoder says of it

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HTTP_DATE = re.compile(r"[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d{2}):(\d{2}):(\d{2}) GMT", re.ASCII)


class Notice(msgspec.Struct, frozen=True):
    """The machine is gone at `gone_ns` (Unix nanoseconds), or soon after it; it may be over already. `cause` is for people."""

    cause: str
    gone_ns: int


class Unreadable(LegatoError):
    """A source said something that is no answer of its kind. The message says what came, and what would be right."""


def quoted(content: bytes) -> str:
    """The beginning of an answer, in one line."""
    text = repr(content[:QUOTED_CHARS_MAX].decode(errors="replace"))
    return f"{text} and {len(content) - QUOTED_CHARS_MAX} bytes more" if len(content) > QUOTED_CHARS_MAX else text


def told(error: Exception) -> str:
    """What a decoder says, without the value that it may quote whole."""
    return str(error)[:REASON_CHARS_MAX]


def utc_ns(text: str) -> int:
    """Unix nanoseconds of an ISO 8601 time with its zone (2017-09-18T08:22:00Z) or an HTTP date (Mon, 19 Sep 2016 18:29:47 GMT, RFC 9110,
    5.6.7; its weekday is not looked at). Raises ValueError."""
    if found := _HTTP_DATE.fullmatch(text):
        day, month, year, hour, minute, second = found.groups()
        moment = datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    else:
        moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000
