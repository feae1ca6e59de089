"""What documents tell people to type works as it stands, beside a fleet with the simulated engine."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import nats
import pytest

from legato.fleet import Fleet
from tests.acceptance.test_nats_door import ask

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("document", "index"),
    [
        (document, index)
        for document in ("README.md", "docs/nats-api.md", "docs/workflows.md")
        for index in range(len(blocks(document, "python")))
    ],
)
async def test_a_program_runs_and_prints_what_the_model_says(fleet: Fleet, document: str, index: int) -> None:
    program = blocks(document, "python")[index].replace("http://127.0.0.1:8080", fleet.running.http)  # the test's own port
    env = {**os.environ, "NATS_URL": fleet.running.nats}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=env, stdout=pipe, stderr=pipe)
    output, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, error.decode()
    assert output.strip()


async def test_the_submissions_that_are_shown_are_taken(fleet: Fleet) -> None:
    shown = re.findall(r"nats pub -J legato\.submit\.\S+ '(.*?)'\n", "".join(blocks("docs/nats-api.md", "sh")))
    shown += [block for block in blocks("docs/nats-api.md", "json") if "model" in block]
    assert len(shown) == 2
    connection = await nats.connect(fleet.running.nats)
    for text in shown:
        outputs = await ask(connection, json.loads(text))
        assert outputs[-1]["end"]["status"] == "succeeded"
    await connection.close()
