"""A small agent for the tests: six steps and three side effects. Its side effects are counted in a file, one line each.

python tests/agent_program.py NATS_URL WORKFLOW_ID FILE
"""

import asyncio
import json
import sys
from pathlib import Path

from legato import Client

ROUNDS = 3


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(url: str, workflow: str, effects: Path) -> None:
    async def act(key: str) -> dict[str, str]:
        with effects.open("a") as file:
            file.write(f"{key}\n")
        return {"page": f"what {key} gave"}

    async with Client(url) as client, client.workflow("test-agent", id=workflow, steps_planned=2 * ROUNDS) as agent:
        say("begun")
        story = "Once upon a time"
        for number in range(ROUNDS):
            asked = {"model": "sim-small", "max_tokens": 60, "seed": 5}
            plan = await agent.step(f"plan {number}", prompt=f"{story} plan", **asked)
            say(f"plan {number}")
            page = await agent.record(f"fetch {number}", act)
            say(f"fetch {number}")
            async for text in agent.stream(f"write {number}", prompt=f"{plan.text} {page['page']}", **asked):
                story += text
                say(f"writing {number}")
        await agent.complete(score=1.0)
    say(json.dumps({"story": story}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
