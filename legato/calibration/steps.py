"""Fitting what a profile's steps show of a GPU, and nothing else.

Seen are the speeds of products, weights, attention, the KV and what else costs by the token (SEEN). Kernels that were run one by one say
nothing of launches, gaps between them and the host. `layer_s`, `step_s` and `request_s` are fitted beside, since small kernels have a least
time, and dropped for those of the level above. So are all others: links, experts, other widths, the front.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from legato.calibration.fit import NAMES, STIFF_GPU, solve, split
from legato.calibration.loop import Array
from legato.calibration.profiles import DECODE, MIXED, PREFILL, Profile
from shared.core.engine_law import law_of
from shared.core.step_law import step_s

KINDS = (DECODE, PREFILL, MIXED)
SEEN = np.array([name in ("bf16", "weights", "attention", "kv", "activations") for name in NAMES])
HOST = np.array([name in ("step_s", "request_s") for name in NAMES])
ALMOST_ZERO = -100.0  # a logarithm


class Steps:
    """A profile's steps, as `fit.solve` takes them. Each kind counts as much as each other one, however many of it were measured."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        kinds = np.array(profile.kind)
        self.weights = np.sum([(kinds == kind) / max(1, np.sum(kinds == kind)) for kind in KINDS], axis=0) * len(kinds) / len(KINDS)
        self.measured: Array = np.log(profile.seconds)

    def predict(self, constants: Array) -> Array:
        """Logarithms of seconds, overheads included."""
        p = self._profile
        law = law_of(p.demand, split(constants)[0])
        work: Iterable[float] = (p.new, p.context, p.pairs, p.requests)  # type: ignore[assignment]
        seconds: Array = np.log(step_s(law, *work))
        return seconds


class StepErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a profile's steps of one kind, as shares: (median of the absolute ones, median of the signed logarithms) each."""

    gpu: str
    kind: str
    steps: int
    before: tuple[float, float]  # by the level above and the GPU's data sheet
    before_without_host: tuple[float, float]  # the same without what the host adds, which kernels do not have
    shipped: tuple[float, float]  # by the GPU's constants, which have seen these steps, with overheads of the level above
    shipped_without_host: tuple[float, float]
    every_second: tuple[float, float]  # half of the steps, by a fit to the other half, overheads as kernels show them


def fit_steps(profile: Profile, prior: Array) -> Array:
    """The constants of a GPU: what the profile shows, and the rest of `prior`, the level above."""
    return np.where(SEEN, _of_kernels(profile, prior), prior)


def step_errors(profile: Profile, prior: Array, constants: Array) -> list[StepErrors]:
    """How far off steps are, by kind: by `prior`, the level above; by `constants`, fitted to them; by fits to half of them."""
    rows = np.arange(len(profile.kind))
    halves = profile.part(rows[::2]), profile.part(rows[1::2])
    crossed = [_ratios(half, _of_kernels(other, prior)) for half, other in (halves, halves[::-1])]
    second, second_kinds = np.concatenate(crossed), np.array(halves[0].kind + halves[1].kind)
    kinds, before = np.array(profile.kind), _ratios(profile, prior)
    after = _ratios(profile, constants)
    before_without, after_without = (_ratios(profile, np.where(HOST, ALMOST_ZERO, each)) for each in (prior, constants))
    return [
        StepErrors(
            gpu=profile.gpu,
            kind=kind,
            steps=profile.kind.count(kind),
            before=_medians(before[kinds == kind]),
            before_without_host=_medians(before_without[kinds == kind]),
            shipped=_medians(after[kinds == kind]),
            shipped_without_host=_medians(after_without[kinds == kind]),
            every_second=_medians(second[second_kinds == kind]),
        )
        for kind in KINDS
        if kind in profile.kind
    ]


def _of_kernels(profile: Profile, prior: Array) -> Array:
    return solve(Steps(profile), prior, np.full(len(NAMES), STIFF_GPU))


def _ratios(profile: Profile, constants: Array) -> Array:
    """Predicted to measured, as logarithms."""
    steps = Steps(profile)
    return steps.predict(constants) - steps.measured


def _medians(logs: Array) -> tuple[float, float]:
    return float(np.median(np.abs(np.expm1(logs)))), float(np.median(logs))
