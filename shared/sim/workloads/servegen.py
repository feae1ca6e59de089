"""A tenant of a production service, as ServeGen describes it (Alibaba, 2025; Apache-2.0): not what was asked, but how it is distributed.

`<path>-trace.csv`: for each 600 s its beginning in s, requests per s, the CV of the gaps, the family that fits them (Gamma or Weibull; none
where nothing was asked) and its shape and scale. `<path>-dataset.json`: for each 6 hours, by its beginning, the texts of two Python dicts
from a number of tokens to its probability, `input_tokens` and `output_tokens`.
"""

import ast
import itertools
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shared.core.errors import LegatoError
from shared.sim.programs import Program
from shared.sim.workloads.arrivals import Gap, Piece, Seconds, arrive, gap_of
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.settings import Clients, Tenant
from shared.sim.workloads.source import Source, tenant_of
from shared.sim.workloads.traces import PathText, found, parsed

ORIGIN = "https://github.com/alibaba/ServeGen (data/*/chunk-*-trace.csv and -dataset.json)"
WINDOW_S = 600.0

Table = tuple[list[int], list[float]]  # numbers of tokens, and the sums of their probabilities up to them


class ServeGen(Clients, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path`: without -trace.csv; its last part is the tenant's name unless there are `tenants`. `rate`: how many times as many requests.
    `from_s`: where in the trace it begins; after its end comes its beginning."""

    path: PathText = "traces/servegen/language_m-small-chunk-14"
    rate: Annotated[float, Meta(ge=0.0001, le=1_000)] = 1.0
    from_s: Seconds = 0.0


class Window(NamedTuple):
    begins_s: float
    rate_per_s: float
    gap: Gap  # of the fitted family and shape, with a mean of 1; a Weibull fit may have another CV than what was measured


class Described(msgspec.Struct, frozen=True):
    input_tokens: str
    output_tokens: str


class Lengths:
    """Draws tokens of prompts and answers; keeps the distributions of one window of time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._described = msgspec.json.decode(path.read_bytes(), type=dict[int, Described])
        except msgspec.DecodeError as error:
            raise LegatoError(f"{path}: {error}") from error
        self._begins = sorted(self._described)
        self._of = -1  # what is kept: the window's beginning
        self._kept: tuple[Table, Table] = (([], []), ([], []))

    def draw(self, at_s: float, random: Random) -> tuple[int, int]:
        """Of a request at that time of the trace. Raises LegatoError if the file says nothing about it."""
        begins = self._begins[max(0, bisect_right(self._begins, at_s) - 1)] if self._begins else 0
        if begins != self._of:
            self._kept = self._read(begins)
            self._of = begins
        prompt, output = (random.choices(values, cum_weights=weights)[0] for values, weights in self._kept)
        return prompt, output

    def _read(self, begins: int) -> tuple[Table, Table]:
        try:
            described = self._described[begins]
            return _table(described.input_tokens), _table(described.output_tokens)
        except (KeyError, ValueError, SyntaxError, TypeError, AttributeError) as error:
            raise LegatoError(f"{self._path} says nothing about the lengths of the 6 hours from {begins} s on: {error!r}") from error


def programs(settings: ServeGen, source: Source) -> Iterator[Program]:
    """A tenant of a production service: single requests, sampled from its rates, gaps and lengths."""
    trace = found(source.data, f"{settings.path}-trace.csv", ORIGIN)
    dataset = found(source.data, f"{settings.path}-dataset.json", ORIGIN)
    tenants = settings.tenants
    if tenants == (Tenant(),):
        tenants = (Tenant(name=Path(settings.path).name),)
    return _sampled(settings, source, tenants, _windows(trace), Lengths(dataset))


def _sampled(settings: ServeGen, source: Source, tenants: tuple[Tenant, ...], windows: list[Window], lengths: Lengths) -> Iterator[Program]:
    random = source.random("lengths")
    span_s = len(windows) * WINDOW_S
    for begins_s in arrive(_pieces(settings, windows, source.seconds), source.random("arrivals")):
        prompt, output = lengths.draw((settings.from_s + begins_s) % span_s, random)
        talk = Conversation(source, [source.fresh(prompt)])
        talk.ask(output)
        yield source.program(settings, tenant_of(tenants, random), begins_s, talk.calls)


def _pieces(settings: ServeGen, windows: list[Window], seconds: float) -> Iterator[Piece]:
    """Windows from `from_s` on, around and around."""
    before = int(settings.from_s // WINDOW_S)
    for number in itertools.count(before):
        window = windows[number % len(windows)]
        until_s = (number + 1) * WINDOW_S - settings.from_s
        yield Piece(min(until_s, seconds), window.rate_per_s * settings.rate, window.gap)
        if until_s >= seconds:
            return


def _windows(path: Path) -> list[Window]:
    windows = list(parsed(path, _window))
    if [window.begins_s for window in windows] != [number * WINDOW_S for number in range(len(windows))] or not windows:
        raise LegatoError(f"{path} must have a row for each {WINDOW_S:.0f} s from 0 on")
    return windows


def _window(line: str) -> Window:
    begins_s, rate_per_s, _, family, shape, _ = line.split(",")
    if not float(rate_per_s):
        return Window(float(begins_s), 0.0, gap_of("gamma", 1.0))
    if family not in ("Gamma", "Weibull"):
        raise ValueError(f"the family of gaps is {family!r}, and must be Gamma or Weibull")
    return Window(float(begins_s), float(rate_per_s), gap_of("gamma" if family == "Gamma" else "weibull", float(shape)))


def _table(text: str) -> Table:
    chances = ast.literal_eval(text)
    if not sum(chances.values()) > 0:
        raise ValueError("no lengths")
    return [int(tokens) for tokens in chances], list(itertools.accumulate(float(chance) for chance in chances.values()))
