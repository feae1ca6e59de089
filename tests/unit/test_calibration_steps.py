"""Fitting a GPU to its measured kernels; what no model can tell apart; the tables that only check."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from legato.calibration.fit import NAMES, split
from legato.calibration.floor import floors
from legato.calibration.planner import FOLDER, MODEL, PRECISION, check
from legato.calibration.points import Loop, Point
from legato.calibration.profiles import DECODE, MIXED, PER_LAYER, PREFILL, Profile, read_profile, read_profiles
from legato.calibration.steps import SEEN, Steps, fit_steps, step_errors
from legato.calibration.work import PLAIN, RUN, calibrate, write
from legato.cli import build
from shared.core.engine_law import Demand, Efficiency, Front, Layout, demand_of, law_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import Fitted, fitted, gpus, models, named_engine
from shared.core.step_law import StepLaw, StepWork, attended, step_ns, step_s

DATA = Path(__file__).parents[2] / "../shared/data"
META = "vllm_version: 0.19.0\ngpu: a card\nvariant: bf16\n"
LAYERS = models()["llama-3.1-8b"].shape.layers
TOKENS, SEQUENCES = (1, 64, 128, 2048), (1, 128)


def vector(constants: Fitted) -> Any:
    """As the fit has it: logarithms."""
    return np.log([getattr(constants.efficiency if hasattr(constants.efficiency, name) else constants.front, name) for name in NAMES])


PRIOR = vector(Fitted(efficiency=Efficiency(), front=Front(), points=0))


def table(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


def profile_in(folder: Path, attention: list[tuple[int, int, int, int, float]], gpu: str = "RTX4090") -> Path:
    """A profile whose kernels take a microsecond and a hundredth per token or sequence, norms two, attention as it is said."""
    below = folder / gpu / "Llama-3.1-8B"
    (below / "tp1").mkdir(parents=True)
    (below / "meta.yaml").write_text(META)
    kernels = [*PER_LAYER, "embedding", "final_layernorm"]
    dense = [(name, size, (2 if name == "layernorm" else 1) + size / 100) for name in kernels for size in TOKENS]
    table(below / "tp1/dense.csv", "layer,tokens,time_us", dense)
    table(
        below / "tp1/per_sequence.csv",
        "layer,sequences,time_us",
        [(n, size, 1 + size / 100) for n in ("lm_head", "sampler") for size in SEQUENCES],
    )
    table(below / "tp1/attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention)
    return below


def measured(law: StepLaw, demand: Demand) -> Profile:
    """Steps of all kinds that take as long as `law` says."""
    chunks, contexts, decodes = (0, 16, 64, 128, 256, 512, 1024, 1984), (0, 256, 1024, 4096), (0, 1, 2, 4, 8, 16, 32, 64)
    sizes = itertools.product(chunks, contexts, decodes, (128, 256, 512, 1024, 2048))
    grid = [(c, k, n, d) for c, k, n, d in sizes if c + n and (c or not k)]
    work = [(c + n, k + n * d, attended(c, k) + n * (d + 1), n + (c > 0)) for c, k, n, d in grid]
    new, context, pairs, requests = np.array(work, dtype=float).T
    seconds = np.array(
        [step_ns(law, StepWork(new_tokens=w[0], context_tokens=w[1], attended_pairs=w[2], requests=w[3])) * 1e-9 for w in work]
    )
    return Profile(
        model="llama-3.1-8b",
        gpu="rtx-4090",
        engine="vllm",
        demand=demand,
        new=new,
        context=context,
        pairs=pairs,
        requests=requests,
        kind=[(MIXED if n else PREFILL) if c else DECODE for c, _, n, _ in grid],
        seconds=seconds,
    )


def demand() -> Demand:
    return demand_of(
        models()["llama-3.1-8b"].shape, gpus()["rtx-4090"].gpu, Layout(), msgspec.structs.replace(PRECISION, attention=2.0, dense=2.0)
    )


def test_a_step_is_all_layers_and_what_surrounds_them(tmp_path: Path) -> None:
    profile = read_profile(profile_in(tmp_path, [(64, 100, 0, 0, 7.0), (0, 0, 64, 50, 5.0), (36, 10, 28, 20, 6.0)]))
    kernels = len(PER_LAYER) + 1  # norms twice
    for row, (attention, sequences) in enumerate([(7.0, 1), (5.0, 64), (6.0, 29)]):
        layer = kernels * 1.64 + 2 + attention  # the norms' second microseconds
        assert profile.seconds[row] == pytest.approx((LAYERS * layer + 2 * 1.64 + 2 * (1 + sequences / 100)) * 1e-6)
    assert profile.kind == [PREFILL, DECODE, MIXED]
    assert profile.new.tolist() == [64, 64, 64]
    assert profile.context.tolist() == [100, 3200, 570]
    assert profile.pairs.tolist() == [attended(64, 100), 64 * 51, attended(36, 10) + 28 * 21]
    assert profile.requests.tolist() == [1, 64, 29]


@pytest.mark.parametrize("row", [(2048, 0, 1, 16, 9.0), (0, 0, 129, 16, 9.0), (16, 30_000, 0, 0, 9.0)])
def test_steps_that_no_engine_runs_are_left_out(row: tuple[int, int, int, int, float], tmp_path: Path) -> None:
    """More tokens than a step has, more sequences, and a context for which a 4090 has no room beside 16 GB of weights."""
    assert len(read_profile(profile_in(tmp_path, [row, (64, 0, 0, 0, 7.0)])).kind) == 1


def test_a_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = profile_in(tmp_path, [(64, 0, 0, 0, 7.0)])
    (folder / "tp1/attention.csv").write_text("prefill_chunk,time_us\n1,2\n")
    with pytest.raises(LegatoError, match="tp1 does not hold a profile"):
        read_profile(folder)
    (folder / "meta.yaml").write_text("variant: fp8\n")
    with pytest.raises(LegatoError, match="has a vllm_version, and of this command the variant bf16"):
        read_profile(folder)
    with pytest.raises(LegatoError, match=r"known `as` Llama-3\.1-8B or ABACUS"):
        read_profile(profile_in(tmp_path, [(64, 0, 0, 0, 7.0)], gpu="ABACUS"))
    with pytest.raises(LegatoError, match="no step of attention"):
        read_profile(profile_in(tmp_path / "long", [(2048, 0, 100, 16, 7.0)]))
    assert read_profiles(tmp_path / "nowhere") == []


def test_kernels_say_what_they_show_and_the_rest_comes_from_the_level_above() -> None:
    truth = Efficiency(bf16=0.9, weights=0.93, attention=0.5, kv=0.9, layer_s=2.5e-5)
    profile = measured(law_of(demand(), truth), demand())
    found = fit_steps(profile, PRIOR)
    assert found[~SEEN].tolist() == PRIOR[~SEEN].tolist()
    for name in ("bf16", "weights", "attention", "kv"):
        at, true = NAMES.index(name), np.log(getattr(truth, name))
        assert abs(found[at] - true) < abs(PRIOR[at] - true) / 2, name


def test_errors_of_steps_are_of_steps_that_the_fit_has_not_seen() -> None:
    truth = Efficiency(bf16=0.9, weights=0.93, attention=0.5, kv=0.9, step_s=1e-9, request_s=1e-9)
    profile = measured(law_of(demand(), truth), demand())
    by_kind = {each.kind: each for each in step_errors(profile, PRIOR, fit_steps(profile, PRIOR))}
    assert set(by_kind) == {DECODE, PREFILL, MIXED}
    for errors in by_kind.values():
        assert errors.every_second[0] < 0.02 < errors.before[0]
    decode = by_kind[DECODE]
    assert decode.before_without_host[1] < decode.before[1]
    exact = step_errors(measured(law_of(demand(), split(PRIOR)[0]), demand()), PRIOR, PRIOR)
    assert all(max(each.before[0], each.shipped[0]) < 1e-6 for each in exact)


def test_errors_of_what_is_shipped_are_those_of_its_own_constants() -> None:
    profile = measured(law_of(demand(), split(PRIOR)[0]), demand())
    slower = PRIOR + np.where([name in ("step_s", "request_s") for name in NAMES], 1.0, 0.0)
    for errors in step_errors(profile, PRIOR, slower):
        assert errors.shipped[1] > 1e-3 > errors.before[0]
        assert errors.shipped_without_host == errors.before_without_host  # that is all in which they differ


def test_each_kind_of_step_counts_as_much_as_each_other() -> None:
    profile = measured(law_of(demand(), Efficiency()), demand())
    weights, kinds = Steps(profile).weights, np.array(profile.kind)
    sums = [float(np.sum(weights[kinds == kind])) for kind in (DECODE, PREFILL, MIXED)]
    assert sums == pytest.approx([len(kinds) / 3] * 3)


def point(first_s: float, token_s: float, clients: int = 4, engine: str = "vllm", speculative: bool = False) -> Point:
    loop = Loop(prompt_tokens=64, output_tokens=8, clients=clients, shortest=1.0, tokens_per_step=64)
    about: dict[str, Any] = {"model": MODEL, "gpu": "h200", "engine": engine, "loop": loop, "demand": demand()}
    return Point(**about, poll_steps=0, stream_steps=0, first_s=first_s, token_s=token_s, speculative=speculative)


def test_twins_say_what_no_model_can_tell_apart() -> None:
    points = [point(1.0, 0.1), point(2.0, 0.1), point(2.0, 0.1), point(3.0, 0.2, clients=8)]  # the third is a copy, the last alone
    everything, vllm = floors(points, np.array([[1.1, 1.2]] * 4))
    assert (everything.group, everything.points, everything.of) == ("all", 2, 3)
    assert everything.others == pytest.approx((0.75, 0.0))  # 2 for 1 and 1 for 2
    assert everything.hindsight == pytest.approx(((2**0.5 - 1 + 1 - 0.5**0.5) / 2, 0.0))
    assert everything.model_held_out == pytest.approx((0.1, 0.2))
    assert vllm.group == "engine vllm"
    assert floors([point(1.0, 0.1)], np.ones((1, 2)))[0].points == 0


def test_a_measurement_that_is_repeated_with_fewer_digits_is_a_copy() -> None:
    points = [point(0.16994070923828986, 0.008361429811117576), point(0.16994, 0.00836), point(0.16994070923828983, 0.008361429811117576)]
    everything = floors(points, np.ones((3, 2)))[0]
    assert (everything.points, everything.of) == (0, 1)
    assert floors([*points, point(0.17, 0.00836)], np.ones((4, 2)))[0].points == 2  # measured again


def test_points_with_drafts_are_twins_of_each_other_only() -> None:
    points = [point(1.0, 0.1), point(2.0, 0.1), point(1.0, 0.05, speculative=True), point(1.0, 0.04, speculative=True)]
    everything = floors(points, np.ones((4, 2)))[0]
    assert (everything.points, everything.of) == (4, 4)
    assert everything.others[1] == pytest.approx(0.1)  # the middle of 0, 0, 20% (0.04 for 0.05) and 25%


def planner_in(folder: Path, constants: Any) -> Path:
    """Dynamo's two tables, as an engine of these constants would give them."""
    for kind in ("prefill", "decode"):
        (folder / f"selected_{kind}_interpolation").mkdir(parents=True)
    efficiency, front = split(constants)
    law = law_of(demand_of(models()[MODEL].shape, gpus()["h200"].gpu, Layout(), PRECISION), efficiency)
    prompts, contexts, requests = np.array([100, 4000]), np.array([500.0, 2000.0]), np.array([1.0, 100.0])
    firsts = [
        step_s(law, n, 0, attended(n, 0), 1) + front.first_s + front.prompt_token_s * n + front.first_steps * step_s(law, 1, n, n + 1, 1)
        for n in prompts.tolist()
    ]
    tokens = [step_s(law, n, n * c, n * (c + 1), n) for n, c in zip(requests, contexts, strict=True)]
    room = 1_000_000
    np.savez(folder / "selected_prefill_interpolation/raw_data.npz", prefill_isl=prompts, prefill_ttft=np.array(firsts) * 1e3)
    decode = {
        "x_kv_usage": requests * contexts / room,
        "y_context_length": contexts,
        "z_itl": np.array(tokens) * 1e3,
        "max_kv_tokens": [room],
    }
    np.savez(folder / "selected_decode_interpolation/raw_data.npz", **decode)
    return folder


def test_dynamos_tables_are_predicted_as_loops_of_one_and_batches(tmp_path: Path) -> None:
    folder = planner_in(tmp_path, PRIOR)
    found = check(folder, PRIOR)
    assert (found.prompts, found.batches) == (2, 2)
    assert found.first[0] < 1e-3
    assert found.token[0] < 1e-9
    slower = np.where([name in ("weights", "kv", "bf16") for name in NAMES], PRIOR - 0.5, PRIOR)
    assert check(folder, slower).token[1] > 0.2
    with pytest.raises(LegatoError, match="does not hold a profile of Dynamo's planner"):
        check(tmp_path / "nowhere", PRIOR)


def test_the_shipped_h200_is_near_dynamos_tables() -> None:
    folder = DATA / FOLDER
    if not folder.is_dir():
        pytest.skip(f"Dynamo's tables are not at {folder}")
    found = check(folder, vector(fitted("h200")["vllm"]))
    assert found.first[0] < 0.06
    assert found.token[0] < 0.12


def tables_in(folder: Path) -> None:
    """Measured loops, as aiconfigurator writes them."""
    columns = "silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,batch_size,tp_size,"
    rows: list[tuple[Any, ...]] = []
    for number in range(12):
        model, system = ("Llama-3.1-70B", "Qwen3-32B")[number % 2], ("h100_sxm", "b200_sxm")[number // 2 % 2]
        rows.append(("x", "vllm", "1", model, system, "fp8", "agg", 64, 8, "fp8", 1 + number, 4, "", "", "", 100 + number, 10 + number))
    rows.append(("x", "trtllm", "1.2.0rc6.post3", "DeepSeek-R1", "b200_sxm", "fp8", "agg", 64, 8, "fp8", 2, 8, "", "", "", 90, 9))
    (folder / "timing").mkdir()
    header = columns + "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
    table(folder / "timing/silicon_sample.csv", header, rows)


def test_a_whole_calibration_of_small_tables(tmp_path: Path) -> None:
    tables_in(tmp_path)
    profile_in(tmp_path / "timing/profiles", [(64, 0, 0, 0, 7.0), (0, 0, 64, 50, 5.0), (36, 10, 28, 20, 6.0), (0, 0, 8, 50, 5.0)])
    planner_in(tmp_path / "timing/dynamo_planner/H200_TP1P_TP1D", PRIOR)
    found = calibrate(tmp_path, tmp_path / "schedules", lambda what, done, total: None)
    plain = next(each for each in found.errors if (each.held_out, each.group) == ("model", PLAIN))
    assert (found.points, plain.points) == (13, 12)
    assert found.constants["rtx-4090"]["vllm"].points == 4
    assert found.constants["rtx-4090"]["vllm"].efficiency.weights != found.constants["a100"]["vllm"].efficiency.weights
    assert found.constants["rtx-4090"]["sglang"] == found.constants["a100"]["sglang"]
    write(found, tmp_path / "out")
    text = (tmp_path / "out/errors.md").read_text()
    assert all(f"### {title}\n" in text for title in ("Points that contradict each other", "Steps", "Dynamo's planner", "Recorded run"))
    header = (tmp_path / "out/fit-rtx-4090.toml").read_text()
    decode = next(each for each in found.steps if each.kind == DECODE)
    assert "timing/profiles" in header
    assert f"{DECODE} {decode.shipped[0]:.1%} ({decode.shipped_without_host[0]:.1%})" in header
    assert "timing/profiles" not in (tmp_path / "out/fit-a100.toml").read_text()


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_fitted(tmp_path: Path) -> None:
    tables_in(tmp_path)
    (tmp_path / "file").write_text("")
    words = ["calibrate", "--data", str(tmp_path), "--out", str(tmp_path / "file/below")]
    result = CliRunner().invoke(build(words), words)
    assert isinstance(result.exception, LegatoError)
    assert re.search(r"cannot make the folder .*/file/below/schedules: Not a directory; --out names", str(result.exception))


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    tables_in(tmp_path)
    found = calibrate(tmp_path, tmp_path / "schedules", lambda what, done, total: None)
    (tmp_path / "out/errors.md").mkdir(parents=True)
    with pytest.raises(LegatoError, match=r"cannot write .*/out/errors\.md: Is a directory"):
        write(found, tmp_path / "out")
    for path in (tmp_path / "schedules").iterdir():
        (tmp_path / "full" / path.with_suffix(".part.npy").name).mkdir(parents=True)
    with pytest.raises(LegatoError, match=r"cannot write .*/full/\w+\.npy: Is a directory"):
        calibrate(tmp_path, tmp_path / "full", lambda what, done, total: None)


@pytest.mark.parametrize(
    ("gpu", "constants"), [("RTX4090", {"of other GPUs"}), ("RTXPRO6000", {"of other GPUs", "with its GPU's kernels"})]
)
def test_a_run_is_predicted_by_its_gpus_kernels_only_where_they_were_measured(gpu: str, constants: set[str], tmp_path: Path) -> None:
    tables_in(tmp_path)
    run = tmp_path / RUN
    run.mkdir(parents=True)
    (run / "meta.json").write_text('{"engine_kwargs": {"max_num_seqs": 4, "max_num_batched_tokens": 2048}}')
    asked = {"queued_ts": 5.0, "input_toks": 100, "output_toks": 10, "first_token_ts": 5.1, "last_token_ts": 5.3}
    (run / "requests.jsonl").write_text(json.dumps(asked))
    profile_in(tmp_path / "timing/profiles", [(64, 0, 0, 0, 7.0), (0, 0, 64, 50, 5.0), (36, 10, 28, 20, 6.0)], gpu)
    found = calibrate(tmp_path, tmp_path / "schedules", lambda what, done, total: None)
    assert {each.constants for each in found.runs} == constants
    assert len({each.predicted_token_s for each in found.runs}) == len(constants)


@pytest.mark.parametrize("gpu", ["rtx-4090", "rtx-pro-6000"])
def test_a_name_without_an_engine_means_the_one_whose_kernels_were_measured(gpu: str) -> None:
    assert named_engine(f"llama-3.1-8b@{gpu}") == named_engine(f"llama-3.1-8b@{gpu}:vllm")
    assert fitted(gpu)["sglang"] == fitted("a100")["sglang"]  # nothing was measured of it on either


@pytest.mark.parametrize("folder", ["RTX4090", "RTXPRO6000"])
def test_shipped_constants_are_what_the_profiles_give(folder: str) -> None:
    where = DATA / "timing/profiles" / folder / "Llama-3.1-8B"
    if not where.is_dir():
        pytest.skip(f"the profile is not at {where}")
    profile = read_profile(where)
    found = fit_steps(profile, vector(fitted("a100")["vllm"]))  # the A100 has vLLM's constants of other GPUs
    assert found == pytest.approx(vector(fitted(profile.gpu)["vllm"]), abs=2e-2)
    errors = {each.kind: each.every_second[0] for each in step_errors(profile, vector(fitted("a100")["vllm"]), found)}
    assert errors[DECODE] < 0.03
    assert max(errors.values()) < 0.1
