"""Fitting the engine model: schedules of loops, constants from points, and the recorded run."""

from pathlib import Path

import numpy as np
import pytest

from legato.calibration.fit import NAMES, Cell, predict, split, train
from legato.calibration.loop import CONTEXT, NEW, PAIRS, PER_TOKEN, REQUESTS, TO_FIRST, schedule
from legato.calibration.points import COLUMNS, Loop, Point, read_points
from legato.calibration.recorded import Arrival, Recorded, read_vllm_run, replayed
from shared.core.engine_law import PRECISIONS, Efficiency, Front, Layout, demand_of, law_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import gpus, law_called, models, named_engine
from shared.core.step_law import StepLaw, prefill_ns, step_s

DATA = Path(__file__).parents[2] / "../shared/data"
ONE = Loop(prompt_tokens=100, output_tokens=11, clients=1, shortest=1.0, tokens_per_step=64)
LAW = law_called("llama-3.1-8b@h100:vllm")


def means(loop: Loop, law: StepLaw) -> tuple[float, float]:
    """Mean TTFT and TPOT of a loop by its schedule."""
    table = schedule(loop)
    durations = step_s(law, *(table[:, column] for column in (NEW, CONTEXT, PAIRS, REQUESTS)))  # type: ignore[arg-type]
    return float(np.sum(durations * table[:, TO_FIRST])), float(np.sum(durations * table[:, PER_TOKEN]))


def test_a_client_alone_waits_for_its_prefill_and_then_decodes() -> None:
    first, token = means(ONE, LAW)
    assert first == pytest.approx((prefill_ns(LAW, 64) + prefill_ns(LAW, 36, 64)) * 1e-9, rel=1e-6)
    assert token == pytest.approx(step_s(LAW, 1, 104.5, 105.5, 1), rel=1e-6)


@pytest.mark.parametrize("clients", [1, 5, 12])
def test_a_schedule_says_what_the_same_requests_take_on_a_clock(clients: int) -> None:
    """Where all prompts of a wave fit into one iteration, every wave takes as long as the first."""
    law = StepLaw(overhead_s=0.01, request_s=0.001)
    arrivals = [Arrival(at_s=0.0, prompt_tokens=64, output_tokens=5)] * clients
    run = Recorded(arrivals=arrivals, slots=clients, tokens_per_step=64 * clients, first_s=1.0, token_s=1.0)
    loop = Loop(prompt_tokens=64, output_tokens=5, clients=clients, shortest=1.0, tokens_per_step=64 * clients)
    assert means(loop, law) == pytest.approx(replayed(run, law, blocks=1000))


def test_merging_iterations_changes_the_means_little() -> None:
    loop = Loop(prompt_tokens=512, output_tokens=256, clients=16, shortest=0.8, tokens_per_step=2048)
    assert len(schedule(loop)) < 100
    assert np.sum(schedule(loop)[:, PER_TOKEN]) == pytest.approx(1.0, rel=0.01)  # a token an iteration


def test_iterations_that_are_counted_together_say_what_single_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(prompt_tokens=512, output_tokens=256, clients=16, shortest=0.8, tokens_per_step=2048)
    together = means(loop, LAW)
    monkeypatch.setattr("legato.calibration.loop.ALIKE", 0.0)
    assert together == pytest.approx(means(loop, LAW), rel=1e-3)


def synthetic(count: int = 24) -> list[Point]:
    """Points that an engine of known constants would have given."""
    efficiency, front = Efficiency(weights=0.5, kv=0.4, layer_s=6e-5), Front(first_s=0.02, first_steps=1.0)
    points = []
    for number in range(count):
        model, gpu = ("llama-3.1-8b", "qwen3-32b")[number % 2], ("h100", "h200", "b200")[number % 3]
        loop = Loop(
            prompt_tokens=(128, 2048)[number % 5 % 2], output_tokens=64, clients=2 ** (number % 6), shortest=0.8, tokens_per_step=2048
        )
        demand = demand_of(models()[model].shape, gpus()[gpu].gpu, Layout(tensor=1 + number % 2), PRECISIONS["bf16"])
        first, token = means(loop, law_of(demand, efficiency))
        prompts = 0.9 * loop.prompt_tokens
        point = Point(
            model=model, gpu=gpu, engine="vllm", loop=loop, demand=demand, poll_steps=0, stream_steps=0, first_s=1.0, token_s=token
        )
        waiting = first + front.first_steps * token + front.first_s + front.prompt_token_s * prompts
        points.append(Point(**{name: getattr(point, name) for name in Point.__struct_fields__} | {"first_s": waiting}))
    return points


def test_a_fit_finds_what_made_the_points() -> None:
    points = synthetic()
    schedules = {point.loop: schedule(point.loop) for point in points}
    found = train(points, schedules)
    ratios = predict(points, schedules, found)
    assert np.median(np.abs(ratios - 1)) < 0.03
    efficiency, _ = split(found["", ""])
    assert efficiency.weights < 0.65 < Efficiency().weights


def test_a_gpu_that_was_not_fitted_takes_its_engines_constants() -> None:
    points = synthetic()
    schedules = {point.loop: schedule(point.loop) for point in points}
    found = train([point for point in points if point.gpu != "b200"], schedules)
    assert ("vllm", "b200") not in found
    rest = [point for point in points if point.gpu == "b200"]
    expected = np.exp(Cell(rest, schedules).predict(found["vllm", ""]) - Cell(rest, schedules).measured)
    assert predict(rest, schedules, found).T.ravel() == pytest.approx(expected)


def test_constants_are_named_after_both_structs() -> None:
    assert set(NAMES) == set(Efficiency.__struct_fields__) | set(Front.__struct_fields__)


def table_with(folder: Path, **row: str) -> Path:
    columns = [*COLUMNS, "backend_version", "gemm_quant_mode", "batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
    usual = {
        "silicon_data_source": "published; silicon_concurrency=64",
        "backend": "vllm",
        "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "h200_sxm",
        "precision": "fp8",
        "mode": "agg",
        "isl": "1024",
        "osl": "128",
        "silicon_ttft_ms": "300",
        "silicon_tpot_ms": "20",
        "gemm_quant_mode": "fp8",
        "batch_size": "8",
        "tp_size": "8",
    } | row
    path = folder / "table.csv"
    path.write_text(",".join(columns) + "\n" + ",".join(usual.get(column, "") for column in columns) + "\n")
    return path


def test_the_concurrency_is_read_from_where_it_is_always_right(tmp_path: Path) -> None:
    points, _ = read_points(table_with(tmp_path))
    assert points[0].loop.clients == 64


@pytest.mark.parametrize(
    ("file", "shortest"), [("kimi-k2.5-gap-analysis.csv", 0.8), ("2026-04-06.csv", 0.8), ("x/aic-auto-gap-analysis/data/y.csv", 1.0)]
)
def test_what_inferencex_published_is_known_by_its_file(file: str, shortest: float, tmp_path: Path) -> None:
    points, _ = read_points(table_with(tmp_path, silicon_data_source=f"source_file={file}; silicon_concurrency=64"))
    assert points[0].loop.shortest == shortest


def test_expert_parallelism_that_is_written_twice_is_counted_once(tmp_path: Path) -> None:
    points, _ = read_points(table_with(tmp_path, tp_size="64", moe_tp_size="8", moe_ep_size="8"))
    assert points[0].demand.hops == 2 * 61 * 3  # 8 GPUs
    points, _ = read_points(table_with(tmp_path, tp_size="1", attention_dp_size="8", moe_tp_size="1", moe_ep_size="8"))
    assert (points[0].demand.ranks, points[0].loop.clients) == (8, 8)


@pytest.mark.parametrize(
    ("row", "speculative"),
    [
        ({"backend": "trtllm", "backend_version": "1.2.0rc6.post3"}, True),
        ({"backend": "trtllm", "silicon_data_source": "x; measured=2026-01-14T00:00"}, True),
        ({"backend": "trtllm"}, False),
        ({"backend": "sglang", "backend_version": "1.2.0rc6.post3"}, False),
        ({"backend": "trtllm", "backend_version": "1.2.0rc6.post3", "model_path": "Qwen/Qwen3-32B"}, False),
    ],
)
def test_rows_that_ran_with_drafts_are_known(row: dict[str, str], speculative: bool, tmp_path: Path) -> None:
    points, _ = read_points(table_with(tmp_path, **row))
    assert points[0].speculative is speculative


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"mode": "disagg"}, "prefill and decode on different GPUs"),
        ({"silicon_ttft_ms": "10001"}, "saturated: TTFT above 10 s"),
        ({"tp_size": "72"}, "a layout that cannot be one engine"),
        ({"model_path": "somebody/else"}, "a model or GPU that is not known"),
    ],
)
def test_what_the_model_does_not_speak_about_is_counted(row: dict[str, str], why: str, tmp_path: Path) -> None:
    points, left_out = read_points(table_with(tmp_path, **row))
    assert (points, dict(left_out)) == ([], {why: 1})


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LegatoError, match="has no column silicon_data_source, backend"):
        read_points(tmp_path / "table.csv")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(LegatoError, match="does not hold a recorded vLLM run"):
        read_vllm_run(tmp_path)


def test_the_recorded_run_comes_out_near_what_was_measured() -> None:
    """No fit has seen it, but kernels of its GPU and vLLM on other GPUs (docs/calibration.md)."""
    folder = DATA / "timing/vllm_runs/rtxpro6000_llama-3.1-8b/vllm"
    if not folder.is_dir():
        pytest.skip(f"the recorded run is not at {folder}")
    run, engine = read_vllm_run(folder), named_engine("llama-3.1-8b@rtx-pro-6000:vllm")
    first, token = replayed(run, engine.law, engine.blocks)
    assert first == pytest.approx(run.first_s, rel=0.1)
    assert token == pytest.approx(run.token_s, rel=0.05)
