"""What runs: every process answers on `legato.status`."""

import asyncio
from collections.abc import Collection

import msgspec
from nats.aio.msg import Msg

from shared.contracts import subjects
from shared.runtime.admin import ProcessStatus
from shared.runtime.bus import Bus

WAIT_S = 1.0  # for all answers
QUIET_S = 0.3  # without a further answer, when nobody in particular is expected


async def ask(bus: Bus, expected: Collection[str] = ()) -> list[ProcessStatus]:
    """The answers, by service and instance. Returns as soon as all `expected` instances have answered, else when answers stop coming."""
    answers: dict[str, ProcessStatus] = {}
    arrived = asyncio.Event()

    async def on_answer(msg: Msg) -> None:
        try:
            answer = msgspec.json.decode(msg.data, type=ProcessStatus)
        except msgspec.DecodeError:  # the server says that nobody listens, or somebody answers who is none of ours
            return
        answers[answer.instance] = answer
        arrived.set()

    inbox = bus.client.new_inbox()
    subscription = await bus.subscribe(inbox, on_answer)
    await bus.publish(subjects.STATUS, b"", reply=inbox)
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT_S
    while (left_s := end - loop.time()) > 0 and not (expected and answers.keys() >= set(expected)):
        arrived.clear()
        try:
            async with asyncio.timeout(left_s if expected else min(left_s, QUIET_S if answers else WAIT_S)):
                await arrived.wait()
        except TimeoutError:
            break
    await subscription.unsubscribe()
    return sorted(answers.values(), key=lambda answer: (answer.service, answer.instance))


def is_up(status: ProcessStatus) -> bool:
    """Whether a process does what it should: it serves, or it stands by for one that does."""
    return status.ready or status.details.get("role") == "standing by"
