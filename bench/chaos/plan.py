"""Which process is struck, how, and when: drawn from a seed, before anything runs. Pure.

Rule: all (victim, way) pairs are shuffled like cards and played one after the other, so that every pair comes before any comes again. Every
second blow falls on a worker or its engine, where one may be struck. Times between blows are exponential. A victim has `REST_S` between two
blows, and one worker of each engine is always left alone: what the plan does not spare is the machine that all run on.
"""

import random
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

EVERY_S = 1.5  # between two blows, in the mean
REST_S = 4.0  # of one victim, between the end of a blow and the next
BEGIN_S = 1.0  # the load runs by then
PAUSES_S = ((0.2, 1.5), (4.0, 8.0))  # shorter and longer than a lease (3 s for workers, 6 s for services)


class Way(StrEnum):
    """How a process is struck."""

    KILL = "SIGKILL"
    STOP = "SIGTERM"  # with notice: it may finish, hand over, say good-bye
    PAUSE = "SIGSTOP"  # and SIGCONT


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s` after the storm's beginning. `victim`: a process of the fleet; with `engine`, the engine under that worker."""

    at_s: float
    victim: str
    way: Way
    pause_s: float = 0.0
    engine: bool = False

    @property
    def on_worker(self) -> bool:
        return self.victim.startswith("worker-")

    @property
    def end_s(self) -> float:
        return self.at_s + self.pause_s


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """Names of processes. `engines`: those of the workers that have an engine process of their own."""

    workers: Sequence[str]
    others: Sequence[str]
    engines: Sequence[str] = ()


def plan(seed: int, seconds: float, victims: Victims) -> list[Blow]:
    """The blows of a storm of that length, in order. The same for the same arguments, always."""
    draw = random.Random(seed)
    targets = [(worker, False) for worker in victims.workers] + [(worker, True) for worker in victims.engines]
    decks = (_Deck(draw, targets), _Deck(draw, [(name, False) for name in victims.others]))
    blows: list[Blow] = []
    at_s = BEGIN_S
    while at_s < seconds:
        spared = _spared(blows, at_s, victims)
        turn = len(blows) % 2
        card = decks[turn].play(spared) or decks[1 - turn].play(spared)
        if card is not None:
            name, engine, way = card
            pause_s = draw.uniform(*draw.choice(PAUSES_S)) if way is Way.PAUSE else 0.0
            blows.append(Blow(at_s=at_s, victim=name, way=way, pause_s=pause_s, engine=engine))
        at_s += draw.expovariate(1 / EVERY_S)
    return blows


def _spared(blows: Sequence[Blow], at_s: float, victims: Victims) -> Callable[[str], bool]:
    """Who must not be struck now: who rests, and the last worker of an engine."""
    resting = {blow.victim for blow in blows if blow.end_s + REST_S > at_s}
    kinds = [set(victims.engines), set(victims.workers) - set(victims.engines)]

    def spared(name: str) -> bool:
        return name in resting or any(name in kind and len(kind & resting) + 1 >= max(len(kind), 2) for kind in kinds)

    return spared


class _Deck:
    """All (victim, engine, way) of some targets in a random order, and all of them again when they are played."""

    def __init__(self, draw: random.Random, targets: Sequence[tuple[str, bool]]) -> None:
        self._draw = draw
        self._cards = [(name, engine, way) for name, engine in targets for way in Way if not (engine and way is Way.STOP)]
        self._hand: list[tuple[str, bool, Way]] = []

    def play(self, spared: Callable[[str], bool]) -> tuple[str, bool, Way] | None:
        """The next card whose victim is not spared; those before it wait."""
        self._hand = self._hand or self._draw.sample(self._cards, len(self._cards))
        for index, card in enumerate(self._hand):
            if not spared(card[0]):
                return self._hand.pop(index)
        return None
