"""A part of `make chaos`, with a fixed seed: whatever is struck, nothing is lost, repeated, different, paid twice or left behind."""

import asyncio
import sys

import msgspec

from bench.chaos.report import Report

LIMIT_S = 240.0
ARGUMENTS = ("--seed", "233", "--seconds", "10", "--workers", "3", "--streams", "16", "--json")


async def test_a_storm_passes_and_leaves_no_trace() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.chaos", *ARGUMENTS, stdout=asyncio.subprocess.PIPE)
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    report = msgspec.json.decode(printed, type=Report)
    assert not report.faults, f"seed {report.seed}: {report.faults}"
    assert process.returncode == 0
    assert report.struck.keys() >= {"worker", "nats", "postgres", "scheduler", "gateway"}
    assert report.steps > 0
    assert report.workflows > 0
    assert report.attempts > report.steps, "nothing that ran was struck"
