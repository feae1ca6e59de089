"""Structured logs by the standard library: one JSON object per line for machines, short lines for people at a terminal.

    log.warning("worker lost", extra={"worker": worker, "idle_ms": 1500})

The event loop never waits for the log: lines go through a bounded queue to a thread that formats and writes them. When the queue is full,
lines are dropped, and how many is logged as soon as there is room.
"""

import atexit
import logging
import logging.handlers
import queue
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

QUEUE_MAX = 10_000  # lines; about a second of a very noisy process
END_S = 5.0  # for the writing thread to make room at the end
# Attributes that every record has; what else is on one came by `extra`.
STANDARD = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])
LEVELS = ("debug", "info", "warning", "error")

_listeners: list[logging.handlers.QueueListener] = []


def setup(service: str, instance: str, level: str = "info", json: bool | None = None, stream: TextIO | None = None) -> None:
    """Log to `stream` (standard error) from now on. `json` None: unless the stream is a terminal. Replaces an earlier setup."""
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}; there are {', '.join(LEVELS)}")
    flush()
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json
    writer = logging.StreamHandler(stream)
    writer.setFormatter(JsonFormatter(service, instance) if as_json else ReadableFormatter(service))
    handler = BoundedHandler(QUEUE_MAX)
    listener = BoundedListener(handler.queue, writer)
    listener.start()
    _listeners.append(listener)
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, BoundedHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for chatty in ("asyncio", "nats", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def flush() -> None:
    """Write what is queued and end the writing thread; also done at exit. Nothing is written afterwards, until `setup`."""
    while _listeners:
        _listeners.pop().stop()


atexit.register(flush)


class BoundedHandler(logging.handlers.QueueHandler):
    """Never waits: a line that finds the queue full is counted instead."""

    queue: "queue.Queue[Any]"

    def __init__(self, size: int) -> None:
        super().__init__(queue.Queue(size))
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Only fixes the message, whose arguments may change before it is written; all else is left to the writing thread."""
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self.queue.put_nowait(_dropped_record(self._dropped))
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1


class BoundedListener(logging.handlers.QueueListener):
    """The writing thread."""

    queue: "queue.Queue[Any]"

    def enqueue_sentinel(self) -> None:
        """Ask the thread to end; the library's own version fails when the queue is full."""
        self.queue.put(None, timeout=END_S)


class JsonFormatter(logging.Formatter):
    """time (RFC 3339, UTC), level, service, instance, logger, message, the extra fields, and error with the traceback."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._origin = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **self._origin,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


class ReadableFormatter(logging.Formatter):
    """`12:01:02.123 warning scheduler: worker lost  worker=w1 idle_ms=1500`, in local time."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = f"{time} {record.levelname.lower():7} {self._service}: {record.getMessage()}{' ' if fields else ''}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD}


def _dropped_record(count: int) -> logging.LogRecord:
    message = f"{count} log lines were dropped, because they came faster than they could be written"
    return logging.makeLogRecord({"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
