"""`legato simulate`, from the file to the report, with a small fleet that is really played."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from legato.cli import build
from legato.commands.record import write
from legato.simulate.defined import FIGURES
from legato.simulate.loading import read
from legato.simulate.runs import run_all
from legato.simulate.variants import scenarios
from shared.core.errors import LegatoError
from shared.sim.heap import SECOND_NS
from shared.sim.workloads.recorded import Quote, Row

SMALL = """
question = "Is it played?"
seconds = 8
drain_s = 30

[pools.h100]
law = "llama-3.1-8b@h100:vllm"
count = 2
usd_per_hour = 2.95

[[workload]]
kind = "single"
with = { rate_per_s = 3.0 }

[policies.default]
[policies.round_robin]
scheduler.placement = "round_robin"
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def called(*words: str) -> Any:
    return CliRunner().invoke(build(["simulate", *words]), ["simulate", *words])


def answer(*words: str) -> dict[str, Any]:
    result = called(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_policies_are_played_on_the_same_loads_and_compared(small: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found = answer(small, "--seeds", "2", "--jobs", "2", "--html", str(page))
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [
        ("default", 1),
        ("round_robin", 1),
        ("default", 2),
        ("round_robin", 2),
    ]
    first, second, third, _ = found["runs"]
    assert first["figures"]["calls"] == second["figures"]["calls"] > 0
    assert first["hash"] != second["hash"]
    assert first["figures"] != third["figures"]
    assert all(not run["violations"] and run["figures"]["program_success"] == 1.0 for run in found["runs"])
    assert [row["figure"] for row in found["comparison"]["rows"]] == [figure.name for figure in FIGURES]
    assert all(set(row["differences"]) == {"round_robin"} for row in found["comparison"]["rows"])
    assert "Is it played?" in page.read_text()


def test_a_run_is_the_same_here_and_in_a_process_of_its_own(small: str) -> None:
    here = answer(small, "--policy", "default", "--jobs", "1")
    apart = answer(small, "--policy", "round_robin", "--policy", "default", "--jobs", "2")
    assert here["runs"][0]["hash"] == apart["runs"][1]["hash"]
    assert here["runs"][0]["figures"] == apart["runs"][1]["figures"]


def test_the_terminal_shows_figures_differences_and_that_one_seed_is_little(small: str) -> None:
    result = called(small, "--jobs", "1")
    assert result.exit_code == 0
    assert "small: Is it played?" in result.stdout
    assert "ttft_p50_s" in result.stdout
    assert "round_robin against default, pair by pair" in result.stdout
    assert "--seeds 10" in result.stderr


def test_each_place_says_what_a_policy_sets_also_where_that_is_another_fleet(small: str, tmp_path: Path) -> None:
    Path(small).write_text(SMALL + "[policies.larger]\npools.h100.count = 3\n")
    page, kept = tmp_path / "report.html", tmp_path / "report.md"
    result = called(small, "--jobs", "1", "--set", "seconds=4", "--html", str(page), "--markdown", str(kept))
    assert result.exit_code == 0, result.output
    for text in (result.stdout, page.read_text(), kept.read_text()):
        for said in (
            "scheduler.placement = round_robin",
            "pools.h100.count = 3",
            "2 x llama-3.1-8b@h100:vllm",
            "3 x llama-3.1-8b@h100:vllm",
        ):
            assert said in text


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_cannot_be_played_is_said_with_its_reason(small: str, tmp_path: Path, jobs: str) -> None:
    trace = ("--set", "workload.0.kind=mooncake", "--set", "workload.0.with={}")
    result = called(small, *trace, "--data", str(tmp_path), "--jobs", jobs)
    assert isinstance(result.exception, LegatoError)
    assert "mooncake_conversation" in str(result.exception)
    assert "is not there" in str(result.exception)


def test_a_process_that_dies_ends_the_others_and_is_named(small: str, tmp_path: Path) -> None:
    def kill(policy: str, seed: int, share: float) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(LegatoError, match=r"seed [12]: its process ended with status -9"):
        run_all(scenarios(read(small)), 2, tmp_path, 2, kill)
    assert not multiprocessing.active_children()


def test_a_report_that_could_not_be_written_is_refused_before_anything_is_played(small: str) -> None:
    result = called(small, "--html", "/nowhere/report.html")
    assert isinstance(result.exception, LegatoError)
    assert "there is no directory /nowhere" in str(result.exception)


def test_without_a_scenario_it_says_where_they_are() -> None:
    assert "--list" in str(called().exception)
    result = called("--list")
    assert result.exit_code == 0
    assert "shared-prefixes" in result.stdout


def test_a_recorded_load_is_played_in_the_place_of_the_scenarios(small: str, tmp_path: Path) -> None:
    """A conversation of two steps, of which the second begins with all that the first had and said, and one more step."""
    blocks = list(range(100, 112))
    about: dict[str, Any] = {"model": "recorded", "block_tokens": 16, "tenant": "acme"}
    rows = [
        Row(step="a", asked_ns=0, ended_ns=2 * SECOND_NS, prompt_tokens=70, output_tokens=60, blocks=blocks[:4], **about),
        Row(step="b", asked_ns=SECOND_NS, prompt_tokens=40, output_tokens=20, blocks=[1, 2], **about),
        Row(
            step="c",
            asked_ns=4 * SECOND_NS,
            prompt_tokens=200,
            output_tokens=20,
            after=blocks[3],
            blocks=blocks[4:],
            quotes=Quote(step="a", at=4, blocks=4, rest=6),
            **about,
        ),
    ]
    write(tmp_path / "day.jsonl", rows)
    [run] = answer(small, "--from-log", str(tmp_path / "day.jsonl"), "--policy", "default", "--set", "block_tokens=16")["runs"]
    figures = run["figures"]
    assert (figures["calls"], figures["programs"], figures["call_success"]) == (3, 2, 1)
    assert figures["hit_rate"] == pytest.approx(8 * 16 / (70 + 40 + 200))
    assert list(run["tenants"]) == ["acme"]
