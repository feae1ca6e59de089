"""A whole calibration: schedules, fits, cross-validation, the recorded run, and the files that are shipped."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

import msgspec
import numpy as np

from legato import places
from legato.calibration import planner
from legato.calibration.fit import Constants, constants_for, fitted_of, predict, split, train
from legato.calibration.floor import Floor, floors
from legato.calibration.loop import Array, schedule
from legato.calibration.points import Loop, Point, read_points
from legato.calibration.profiles import FOLDER, read_profiles
from legato.calibration.recorded import read_vllm_run, replayed
from legato.calibration.steps import StepErrors, fit_steps, step_errors
from shared.core.engine_law import PRECISIONS, Layout, demand_of, kv_blocks, law_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import ENGINES, Fitted, gpus, models

TABLE = "timing/silicon_sample.csv"
RUN, RUN_MODEL, RUN_GPU, RUN_ENGINE = "timing/vllm_runs/rtxpro6000_llama-3.1-8b/vllm", "llama-3.1-8b", "rtx-pro-6000", "vllm"
PLAIN = "all, without speculative rows and GB200"  # docs/calibration.md says why both are hardly to be explained
Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a group of points, as shares: medians of the absolute ones, and of the signed ones (bias, of logarithms)."""

    held_out: str  # what the fit had not seen: model, gpu; empty: it had seen all
    group: str  # as "engine vllm"; "all"
    points: int
    first: float
    token: float
    first_bias: float
    token_bias: float


class RunErrors(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run: measured and predicted means, in seconds."""

    run: str
    constants: str  # whose predict it
    first_s: float
    token_s: float
    predicted_first_s: float
    predicted_token_s: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    points: int
    left_out: dict[str, int]
    errors: list[Errors]
    floors: list[Floor]
    steps: list[StepErrors]
    checks: list[planner.Check]
    runs: list[RunErrors]
    constants: dict[str, dict[str, Fitted]]  # by GPU and engine


def calibrate(data: Path, kept: Path, told: Told) -> Calibration:
    """Fit to the tables below `data`; schedules are kept in `kept`, since they depend on no measurement. Raises LegatoError."""
    table = data / TABLE
    if not table.is_file():
        raise LegatoError(f"there is no {table}: --data names the folder that holds {TABLE}")
    points, left_out = read_points(table)
    schedules = schedules_of({point.loop for point in points}, kept, told)
    told("fit", 0, 1)
    found = train(points, schedules)
    told("fit", 1, 1)
    errors = list(_errors("", points, predict(points, schedules, found)))
    crossed = {by: held_out(points, schedules, by, told) for by in ("model", "gpu")}
    for by, ratios in crossed.items():
        errors += _errors(by, points, ratios)
    counts = Counter((point.engine, point.gpu) for point in points)
    profiles, steps, complete = read_profiles(data / FOLDER), [], dict(found)
    for profile in profiles:
        prior = constants_for(found, profile.engine, profile.gpu)
        complete[profile.engine, profile.gpu] = fit_steps(profile, prior)
        steps += step_errors(profile, prior, complete[profile.engine, profile.gpu])
        counts[profile.engine, profile.gpu] += len(profile.kind)
    return Calibration(
        points=len(points),
        left_out=dict(left_out),
        errors=errors,
        floors=floors(points, crossed["model"]),
        steps=steps,
        checks=_checks(data, complete),
        runs=_runs(data, found, complete),
        constants=_shipped(complete, counts),
    )


def schedules_of(loops: Iterable[Loop], kept: Path, told: Told) -> dict[Loop, Array]:
    """The schedule of each loop, from `kept` where it was computed before. Raises LegatoError."""
    _make(kept)
    ordered = sorted(loops, key=lambda loop: loop.clients * loop.output_tokens)
    found: dict[Loop, Array] = {}
    for done, loop in enumerate(ordered):
        told("schedules", done, len(ordered))
        path = kept / f"{hashlib.sha256(msgspec.json.encode(loop)).hexdigest()[:24]}.npy"
        if not path.exists():
            _save(path, schedule(loop))
        found[loop] = np.load(path)
    told("schedules", len(ordered), len(ordered))
    return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LegatoError(f"cannot make the folder {folder}: {error.strerror}; --out names one that can be written") from error


def _save(path: Path, table: Array) -> None:
    """In one step: a schedule that is there is whole."""
    unfinished = path.with_suffix(".part.npy")
    try:
        np.save(unfinished, table)
        unfinished.replace(path)
    except OSError as error:
        raise LegatoError(f"cannot write {path}: {error.strerror or error}") from error  # numpy says a full disk in words of its own


def held_out(points: Sequence[Point], schedules: Mapping[Loop, Array], by: str, told: Told) -> Array:
    """Ratios of predicted to measured, each group of equal `by` predicted by a fit to all others."""
    ratios = np.empty((len(points), 2))
    groups = sorted({getattr(point, by) for point in points})
    for done, group in enumerate(groups):
        told(f"without each {by}", done, len(groups))
        rows = [row for row, point in enumerate(points) if getattr(point, by) == group]
        rest = [point for point in points if getattr(point, by) != group]
        ratios[rows] = predict([points[row] for row in rows], schedules, train(rest, schedules))
    told(f"without each {by}", len(groups), len(groups))
    return ratios


def _errors(held: str, points: Sequence[Point], ratios: Array) -> Iterable[Errors]:
    rows: dict[str, list[int]] = {"all": list(range(len(points)))}
    rows[PLAIN] = [row for row, point in enumerate(points) if not point.speculative and point.gpu != "gb200"]
    for by in ("engine", "gpu", "model"):
        for row, point in sorted(enumerate(points), key=lambda pair: str(getattr(pair[1], by))):
            rows.setdefault(f"{by} {getattr(point, by)}", []).append(row)
    for group, members in rows.items():
        if not members:
            continue
        first, token = np.median(np.abs(ratios[members] - 1), axis=0).tolist()
        first_bias, token_bias = np.median(np.log(ratios[members]), axis=0).tolist()
        yield Errors(
            held_out=held, group=group, points=len(members), first=first, token=token, first_bias=first_bias, token_bias=token_bias
        )


def _runs(data: Path, found: Constants, complete: Constants) -> list[RunErrors]:
    """The recorded run, which no fit has seen, by its GPU's data sheet and constants of loops, and of its kernels, if there are any."""
    if not (data / RUN).is_dir():
        return []
    run, shape, gpu = read_vllm_run(data / RUN), models()[RUN_MODEL].shape, gpus()[RUN_GPU].gpu
    precision = PRECISIONS[models()[RUN_MODEL].precision]
    demand, blocks = demand_of(shape, gpu, Layout(), precision), kv_blocks(shape, gpu, Layout(), precision)
    by = {"of other GPUs": found}
    if constants_for(complete, RUN_ENGINE, RUN_GPU) is not constants_for(found, RUN_ENGINE, RUN_GPU):
        by["with its GPU's kernels"] = complete
    runs = []
    for whose, constants in by.items():
        first, token = replayed(run, law_of(demand, split(constants_for(constants, RUN_ENGINE, RUN_GPU))[0]), blocks)
        runs.append(
            RunErrors(
                run=f"{RUN_MODEL}@{RUN_GPU}:{RUN_ENGINE}",
                constants=whose,
                first_s=run.first_s,
                token_s=run.token_s,
                predicted_first_s=first,
                predicted_token_s=token,
            )
        )
    return runs


def _checks(data: Path, found: Constants) -> list[planner.Check]:
    folder = data / planner.FOLDER
    return [planner.check(folder, constants_for(found, planner.ENGINE, planner.GPU))] if folder.is_dir() else []


def _shipped(found: Constants, counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, Fitted]]:
    return {
        gpu: {engine: fitted_of(constants_for(found, engine, gpu), counts.get((engine, gpu), 0)) for engine in ENGINES} for gpu in gpus()
    }


def write(calibration: Calibration, folder: Path) -> None:
    """`fit-<gpu>.toml` for each GPU, and `errors.md`. Raises LegatoError."""
    _make(folder)
    texts = {f"fit-{gpu}.toml": _toml(gpu, engines, calibration) for gpu, engines in calibration.constants.items()}
    for name, text in {**texts, "errors.md": tables(calibration)}.items():
        places.write(folder / name, [text.encode()])


def _toml(gpu: str, engines: Mapping[str, Fitted], calibration: Calibration) -> str:
    own = next((each for each in calibration.errors if each.held_out == "gpu" and each.group == f"gpu {gpu}"), None)
    steps = [each for each in calibration.steps if each.gpu == gpu]
    source, error = f"{TABLE} (aiconfigurator, Apache-2.0)", "no measured point: the engines' constants of the other GPUs"
    if steps:
        source += f" and {FOLDER} (LLMServingSim, MIT)"
        kinds = ", ".join(f"{each.kind} {each.shipped[0]:.1%} ({each.shipped_without_host[0]:.1%})" for each in steps)
        error = f"median error of vLLM's steps, all seen by the fit (without step_s and request_s, which kernels do not have): {kinds}"
        error += "; other engines have no measured point"
    if own is not None:
        error = f"median error where a fit has not seen this GPU: TTFT {own.first:.1%}, TPOT {own.token:.1%} of {own.points} points"
    lines = [
        f"# Fitted constants of engines on {gpu}: shared/core/engine_law.py says what each is.",
        f"# Command: legato calibrate. Date: {date.today().isoformat()}. Source: {source}.",
        f"# Error: {error} (docs/calibration.md).",
    ]
    for engine, fitted in engines.items():
        lines += ["", f"[engine.{engine}]", f"points = {fitted.points}"]
        for part in ("efficiency", "front"):
            lines += ["", f"[engine.{engine}.{part}]"]
            lines += [f"{name} = {value:.4g}" for name, value in msgspec.structs.asdict(getattr(fitted, part)).items()]
    return "\n".join(lines) + "\n"


def tables(calibration: Calibration) -> str:
    """The errors as Markdown."""
    titles = {"model": "Held out: each model in turn", "gpu": "Held out: each GPU in turn", "": "Seen by the fit"}
    lines = []
    for held, title in titles.items():
        lines += [f"### {title}", "", "| points of | points | TPOT error | bias | TTFT error | bias |", "|---|---|---|---|---|---|"]
        for e in calibration.errors:
            if e.held_out == held:
                lines.append(f"| {e.group} | {e.points:,} | {e.token:.1%} | {e.token_bias:+.1%} | {e.first:.1%} | {e.first_bias:+.1%} |")
        lines.append("")
    lines += ["### Points that contradict each other", "", "| points of | have twins | the others' middle | own middle | this model |"]
    lines.append("|---|---|---|---|---|")
    for f in calibration.floors:
        errors = " | ".join(f"{token:.1%}, {first:.1%}" for first, token in (f.others, f.hindsight, f.model_held_out))
        lines.append(f"| {f.group} | {f.points:,} of {f.of:,} | {errors} |")
    lines += ["", "### Steps", ""]
    lines.append("| GPU | steps that | steps | GPU held out | no host | shipped (seen) | no host | every second held out |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for each in calibration.steps:
        found = (each.before, each.before_without_host, each.shipped, each.shipped_without_host, each.every_second)
        errors = " | ".join(f"{error:.1%} ({bias:+.1%})" for error, bias in found)
        lines.append(f"| {each.gpu} | {each.kind} | {each.steps:,} | {errors} |")
    lines += [
        "",
        "### Dynamo's planner",
        "",
        "| cell | prompts | TTFT error | bias | batches | TPOT error | bias |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in calibration.checks:
        first, token = (f"{error:.1%} | {bias:+.1%}" for error, bias in (c.first, c.token))
        lines.append(f"| {c.name} | {c.prompts} | {first} | {c.batches} | {token} |")
    lines += ["", "### Recorded run", "", "| run | constants | mean | measured | predicted | error |", "|---|---|---|---|---|---|"]
    for run in calibration.runs:
        for name, measured, predicted in (
            ("TTFT", run.first_s, run.predicted_first_s),
            ("TPOT", run.token_s, run.predicted_token_s),
        ):
            times = f"{measured * 1e3:,.1f} ms | {predicted * 1e3:,.1f} ms | {predicted / measured - 1:+.1%}"
            lines.append(f"| {run.run} | {run.constants} | {name} | {times} |")
    return "\n".join(lines) + "\n"
