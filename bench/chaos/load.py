"""The load: readers and programs, so many at a time, each asking what its engine answers."""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from itertools import count
from pathlib import Path
from traceback import extract_tb
from typing import Any

import aiohttp
import msgspec

from bench.chaos.asks import TOKENS_OF_WORKFLOWS, Asks
from bench.chaos.programs import Program, program, run_program
from bench.chaos.readers import HttpCounts, Reading, Wrong, check_by_http, read_by_nats, read_choices
from legato import Client
from legato.fleet import Fleet
from shared.contracts.ids import StepId

CHOICES = 2  # of a request that asks for several
CHOICES_EVERY = 4  # requests of a reader by NATS, one asks for several; by HTTP every second


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what. `streams`, `http`, `programs`: how many of each at a time."""

    asks: Asks
    streams: int
    http: int
    programs: int


class Load:
    """Streams and workflows, so many at a time, until told to stop; then those that run go on to their end."""

    def __init__(self, fleet: Fleet, seed: int, crowds: Sequence[Crowd]) -> None:
        self.readings: list[Reading] = []
        self.programs: list[Program] = []
        self.http = HttpCounts()
        self._fleet = fleet
        self._seed = seed
        self._crowds = crowds
        self._draw = random.Random(seed + 1)
        self._stopping = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopping = True

    async def run(self) -> None:
        url = self._fleet.running.nats
        async with (
            Client(url) as client,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for crowd in self._crowds:
                for _ in range(crowd.streams):
                    group.create_task(self._streams(client, crowd.asks))
                for _ in range(crowd.http):
                    group.create_task(self._by_http(client, session, crowd.asks))
                for _ in range(crowd.programs):
                    group.create_task(self._workflows(url, crowd.asks))

    def _next_choices(self, asks: Asks, number: int) -> list[Reading]:
        readings = [Reading(step=StepId(""), ask=ask, choice=number > 1) for ask in asks.choices(number)]
        self.readings += readings
        return readings

    def _next(self, asks: Asks) -> Reading:
        step, ask = asks.next()
        reading = Reading(step=step, ask=ask)
        self.readings.append(reading)
        return reading

    async def _streams(self, client: Client, asks: Asks) -> None:
        for turn in count():
            if self._stopping:
                return
            if turn % CHOICES_EVERY == CHOICES_EVERY - 1:
                readings = self._next_choices(asks, CHOICES)
                await _told(read_choices(client, readings), readings[0])
            else:
                reading = self._next(asks)
                await _told(read_by_nats(client, reading), reading)

    async def _by_http(self, client: Client, session: aiohttp.ClientSession, asks: Asks) -> None:
        for turn in count():
            if self._stopping:
                return
            readings = self._next_choices(asks, CHOICES if turn % 2 else 1)
            await _told(check_by_http(session, lambda: self._fleet.running.http, client, readings, self.http), readings[0])

    async def _workflows(self, url: str, asks: Asks) -> None:
        while not self._stopping:
            asked = [asks.next(TOKENS_OF_WORKFLOWS)[1] for _ in range(4)]
            rounds = [(asked[0], asked[1]), (asked[2], asked[3])]
            one = program(self._draw, f"chaos-{self._seed}-w{len(self.programs)}", rounds)
            self.programs.append(one)
            await _told(run_program(url, one), one)


async def _told(work: Coroutine[Any, Any, None], who: Reading | Program) -> None:
    """Whatever ends a reader or a program is a finding, and the others go on."""
    try:
        await work
    except Exception as error:
        where = " < ".join(
            f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(extract_tb(error.__traceback__))
        )
        who.wrong(Wrong.LOST, f"gave up: {error!r} in {where}")
