"""The choices of one request on the bus: a step each, read side by side as one."""

import asyncio
from collections.abc import Callable

from services.gateway.exchange import Exchange
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem
from shared.contracts.output import Output
from shared.core.several import choice_id
from shared.runtime.tasks import end


class Choices:
    """Use as: `await choice(index).submit(...)` for each, from 0 on, then `await choices.outputs(...)` until `ended`, and `close()` in any
    case.

    The first choice that does not succeed ends all: its problem is that of the request, and `close` cancels the others.
    """

    def __init__(self, begin: Callable[[], Exchange]) -> None:
        """`begin`: an exchange that nothing was said on yet."""
        self._begin = begin
        self._all = [begin()]
        self._reading: dict[asyncio.Task[list[Output]], int] = {}  # whose outputs are waited for

    @property
    def first(self) -> Exchange:
        return self._all[0]

    @property
    def steps(self) -> list[StepId]:
        return [each.step for each in self._all]

    def choice(self, index: int) -> Exchange:
        """The exchange of one choice; they begin in order."""
        if index == len(self._all):
            self._all.append(self._begin())
            self._all[index].step_is(choice_id(self.first.step, index))
        return self._all[index]

    @property
    def problem(self) -> Problem | None:
        """Why there is no full answer."""
        return next((problem for each in self._all if (problem := each.problem) is not None), None)

    @property
    def ended(self) -> bool:
        return all(each.end is not None for each in self._all) or self.problem is not None

    async def outputs(self, wait_s: float) -> list[tuple[int, list[Output]]]:
        """What came, by choice; nothing after `wait_s` of silence of one of them."""
        if len(self._all) == 1:
            return [(0, outputs)] if (outputs := await self.first.outputs(wait_s)) else []
        for index, each in enumerate(self._all):
            if each.end is None and index not in self._reading.values():
                self._reading[asyncio.create_task(each.outputs(wait_s), name=f"read-{each.step}")] = index
        done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        came = sorted((self._reading.pop(task), task.result()) for task in done)
        return [(index, outputs) for index, outputs in came if outputs]

    async def close(self) -> None:
        """Leave all of them."""
        try:
            await end(self._reading)
        finally:
            for each in sorted(self._all, key=lambda each: each.end is not None):  # to begin with those that need no waiting
                await each.close()
