import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from shared.runtime import log
from shared.runtime.ids import new_trace


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    log.flush()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    log.flush()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_the_extra_fields() -> None:
    stream = io.StringIO()
    log.setup("scheduler", "s-1", stream=stream)
    logging.getLogger("legato.test").warning("lost %s\nof %d", "w1", 3, extra={"worker": "w1", "idle_ms": 1500})
    (line,) = lines(stream)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "warning",
        "service": "scheduler",
        "instance": "s-1",
        "logger": "legato.test",
        "message": "lost w1\nof 3",
        "worker": "w1",
        "idle_ms": 1500,
    }


def test_an_exception_comes_with_its_traceback_and_odd_fields_as_text() -> None:
    stream = io.StringIO()
    log.setup("worker", "w-1", stream=stream)
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("legato.test").exception("failed", extra={"trace": new_trace(), "what": object()})
    (line,) = lines(stream)
    assert "KeyError: 'gone'" in line["error"]
    assert line["what"].startswith("<object")


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log.setup("worker", "w-1", "warning", stream=stream)
    logging.getLogger("legato.test").info("whisper")
    assert lines(stream) == []


def test_people_get_short_lines() -> None:
    stream = io.StringIO()
    log.setup("worker", "w-1", json=False, stream=stream)
    logging.getLogger("legato.test").info("ready", extra={"blocks": 7})
    log.flush()
    assert stream.getvalue().endswith(" info    worker: ready  blocks=7\n")


def test_a_second_setup_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.setup("a", "1", stream=first)
    log.setup("b", "1", stream=second)
    logging.getLogger("legato.test").info("once")
    assert [line["service"] for line in lines(second)] == ["b"]
    assert first.getvalue() == ""


def test_what_comes_faster_than_it_is_written_is_dropped_and_counted() -> None:
    handler = log.BoundedHandler(size=2)
    logger = logging.Logger("legato.test")
    logger.addHandler(handler)
    for number in range(5):
        logger.info("line %d", number)
    assert handler.queue.get_nowait().getMessage() == "line 0"
    assert handler.queue.get_nowait().getMessage() == "line 1"
    logger.info("line 5")
    assert handler.queue.get_nowait().getMessage().startswith("3 log lines were dropped")
    assert handler.queue.get_nowait().getMessage() == "line 5"


def test_a_full_queue_is_still_written_out_at_the_end() -> None:
    stream = io.StringIO()
    handler = log.BoundedHandler(size=3)
    logger = logging.Logger("legato.test")
    logger.addHandler(handler)
    for number in range(3):
        logger.info("line %d", number)
    listener = log.BoundedListener(handler.queue, logging.StreamHandler(stream))
    listener.start()
    listener.stop()
    assert stream.getvalue().split("\n") == ["line 0", "line 1", "line 2", ""]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud'; there are debug, info"):
        log.setup("a", "1", "loud")
