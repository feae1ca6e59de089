"""What goes wrong in a world, when its plan says so.

kill     a process is killed (SIGKILL), and started again by whoever watches it
die      a process is killed at a point of its own way: when it has received, before or after it sends, before or after it commits
freeze   a process stops at such a point for so many seconds
pause    a process stops for so many seconds (SIGSTOP), and goes on
cut      a connection breaks, and cannot be made again for so long
hold     nothing arrives on a connection for so long, either way; then all of it does
bus      nats-server is away for so long; its files stay
record   Postgres is away for so long
leave    a worker is told to leave (SIGTERM), drains, and comes back later
notice   a worker's machine is to be lost in so many seconds and a bit, and is lost then
engine   a worker's engine dies
slow     every message takes fifty times as long for a while
"""

from collections.abc import Callable
from contextvars import Context

from bench.sim.fleet import Place, Unit
from bench.sim.plan import Fault
from services.worker.engines.simulated import SimulatedEngine
from services.worker.notices.notice import Notice
from shared.drivers.simulate import Process

SLOW = 50.0
STALE_S = 10.0  # a process that answers nothing for so long has lost its connection, by nats-server's pings
NOTICE_S = 3.0


class Faults:
    """`plan` them once. `dies` is asked at every point of every process."""

    def __init__(self, place: Place, units: dict[str, Unit], record_up: Callable[[bool], None]) -> None:
        self.slowness = 1.0
        self._place = place
        self._units = units
        self._record_up = record_up
        self._points: dict[str, list[tuple[Fault, list[int]]]] = {}
        self._loop = place.loop

    def plan(self, faults: list[Fault]) -> None:
        for fault in faults:
            if fault.kind in ("die", "freeze"):
                self._points.setdefault(fault.target, []).append((fault, [0]))
            else:
                self._loop.at(fault.at_s, self._strike, fault)

    def dies(self, process: Process, point: str, subject: str) -> bool:
        """Whether a process dies here."""
        for fault, passed in self._points.get(process.name, ()):
            ours = fault.point == point and fault.about in subject and not subject.startswith(("_INBOX", "legato.alive"))
            if ours and self._loop.elapsed_s() >= fault.at_s:
                passed[0] += 1
                if passed[0] == fault.nth:
                    self._place.said(f"{fault.kind} {process.name} {point} {subject}")
                    if fault.kind == "freeze":
                        self._stop(process, fault.seconds)
                        continue
                    self._loop.call_soon(self._units[fault.target].died_inside, context=Context())
                    return True
        return False

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._points.clear()
        self.slowness = 1.0

    def _strike(self, fault: Fault) -> None:
        self._place.said(f"fault {fault.kind} {fault.target} {fault.seconds}")
        getattr(self, f"_{fault.kind}")(fault)

    def _kill(self, fault: Fault) -> None:
        self._units[fault.target].kill(fault.seconds)

    def _pause(self, fault: Fault) -> None:
        process = self._units[fault.target].process
        if process is not None:
            self._stop(process, fault.seconds)

    def _stop(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        process.pause()
        self._loop.call_later(seconds, process.resume, context=Context())
        if seconds > STALE_S:
            self._loop.call_later(STALE_S, self._drop, process, context=Context())

    def _drop(self, process: Process) -> None:
        for client in self._place.network.clients:
            if client.process is process:
                client.disconnect()

    def _cut(self, fault: Fault) -> None:
        process = self._units[fault.target].process
        for client in self._place.network.clients:
            if client.process is process and process is not None:
                client.cut_until_s = self._loop.time() + fault.seconds
                client.disconnect()

    def _hold(self, fault: Fault) -> None:
        process = self._units[fault.target].process
        for client in self._place.network.clients:
            if client.process is process and process is not None:
                client.held_until_s = self._loop.time() + fault.seconds

    def _bus(self, fault: Fault) -> None:
        server = self._place.network.server
        if not server.up:
            return
        for client in self._place.network.clients:
            client.disconnect()
        server.stop()
        self._loop.call_later(fault.seconds, lambda: setattr(server, "up", True))

    def _record(self, fault: Fault) -> None:
        self._record_up(False)
        self._loop.call_later(fault.seconds, lambda: self._record_up(True))

    def _leave(self, fault: Fault) -> None:
        self._units[fault.target].leave()

    def _notice(self, fault: Fault) -> None:
        unit = self._units[fault.target]
        if unit.notice is None or unit.notice.done() or unit.process is None:
            return
        within_s = NOTICE_S + fault.seconds
        unit.notice.set_result(Notice(gone_ns=self._loop.now_ns() + int(within_s * 1e9), cause="spot"))
        process = unit.process
        self._loop.call_later(within_s, lambda: unit.kill() if unit.process is process else None)

    def _engine(self, fault: Fault) -> None:
        unit = self._units[fault.target]
        if unit.process is not None and unit.engine is not None:
            unit.process.start(_crash(unit.engine))

    def _slow(self, fault: Fault) -> None:
        self.slowness = SLOW
        self._loop.call_later(fault.seconds, lambda: setattr(self, "slowness", 1.0))


async def _crash(engine: SimulatedEngine) -> None:
    """If it is there: one that loads has nothing to lose."""
    if not engine._refusing:
        await engine.crash("the engine was killed")
