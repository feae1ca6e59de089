"""Command lines that cannot be, where no fleet is: one line says so, and no traceback."""

import asyncio
import sys

import pytest

from tests.acceptance.garbage import LIMIT_S, run_command, told

ADDRESSES = ["nats://", "http://x:y", ":::", "nats://127.0.0.1:99999", "nats://[", "nats://127.0.0.1:1", "nats://\udcff", "x" * 300, ","]


@pytest.mark.parametrize("words", [["submit", "x"], ["timeline", "x"], ["replay", "scheduler"], ["status"], ["models"], ["dead"]], ids=str)
async def test_any_address_gets_an_answer(words: list[str]) -> None:
    for address in ADDRESSES:
        status, output, error = await asyncio.to_thread(run_command, [*words, "--nats", address])
        assert (status, output, told(status, output, error)) == (1, "", True), address


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--data", "/etc/passwd/x"],
        ["up", "--config", "/nonexistent"],
        ["up", "--replicas", "scheduler=²"],
        ["run", "scheduler", "--set", "schedular.x=1"],
        ["run", "nobody"],
        ["nothing"],
        ["submit", b"\xff\xfe", "--nats", "nats://["],
    ],
    ids=str,
)
async def test_a_command_that_cannot_be_ends_with_a_line(words: list[str]) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "legato", *words, stdout=pipe, stderr=pipe)
    _, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode in (1, 2)
    assert process.returncode == 2 or len(error.splitlines()) == 1, error
    assert b"Traceback" not in error
