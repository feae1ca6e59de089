"""The simulating driver: processes under a virtual clock.

Nothing is driven differently here than it is live: the live driver, the workers and the readers run as they are, on an event loop whose
time jumps from one thing that is due to the next. What differs is below them (shared/drivers/simulated_nats.py, and a record in memory).

A process is whatever runs in its context: all that it starts belongs to it. One that was killed takes no further step, wherever it stood,
and none of its `finally` runs, as with SIGKILL. One that is paused takes its steps later, as with SIGSTOP.

Everything is in an order that follows from the seed alone: callbacks due at one time run in the order in which they were asked for, and
tasks hash by their number, because asyncio keeps sets of them.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from shared.core.errors import LegatoError

BOOT_S = 1_000.0  # of the machines' clocks, when a simulation begins
START_NS = 1_767_225_600_000_000_000  # 2026-01-01: when every simulation begins
_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)


class Stuck(LegatoError):
    """Nothing is due, and yet somebody waits."""


class Process:
    """What lives and dies together."""

    def __init__(self, name: str, loop: "VirtualLoop") -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.owner: Any = None  # whoever started it may note itself here
        self.backlog: deque[asyncio.Handle] = deque()
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run its main task."""
        return self._loop.create_task(work, context=self.context)

    def kill(self) -> None:
        """At once and for good."""
        self.dead = True
        self.backlog.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """What came meanwhile comes now, in its order."""
        self.paused = False
        backlog, self.backlog = self.backlog, deque()
        self._loop.again(backlog)

    async def stop_here(self) -> None:
        """Die at this very point: the caller does not go on."""
        self.kill()
        await self._loop.create_future()


def current() -> Process | None:
    """The process that runs now; None: the world itself."""
    return _PROCESS.get()


class _Task(asyncio.Task[Any]):
    """One whose place in a set is the same in every run."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)
        self._log_destroy_pending = False  # tasks of killed processes never end

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without I/O and without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self._now_s = BOOT_S
        self._numbers = 0
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap; what is due at one time runs in the order of asking
        self._ready: deque[asyncio.Handle]
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Seconds of a machine's clock that never goes back."""
        return self._now_s

    def elapsed_s(self) -> float:
        """Seconds since the simulation began."""
        return self._now_s - BOOT_S

    def now_ns(self) -> int:
        """The virtual wall clock."""
        return START_NS + round((self._now_s - BOOT_S) * 1e9)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._due, (when, self._numbers, handle))
        return handle

    def at(self, elapsed_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call it so long after the beginning."""
        return self.call_at(BOOT_S + elapsed_s, callback, *args)

    def again(self, handles: "deque[asyncio.Handle]") -> None:
        """Run these next."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """There are no threads: it is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
        self._numbers += 1
        return _Task(coro, number=self._numbers, loop=loop, **options)

    def _run_once(self) -> None:
        """Run what is ready; where nothing is, time goes on to what is due next."""
        ready, due = self._ready, self._due
        if not ready:
            while due and due[0][2].cancelled():
                heapq.heappop(due)
            if not due:
                raise Stuck("nothing is due any more")
            self._now_s = max(self._now_s, due[0][0])
        while due and due[0][0] <= self._now_s:
            ready.append(heapq.heappop(due)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            process: Process | None = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None and (process.dead or process.paused):
                if process.paused and not process.dead:
                    process.backlog.append(handle)
            elif not handle.cancelled():
                self.turns += 1
                handle._run()

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""

    def _process_events(self, _: Any) -> None:
        """There are none."""
