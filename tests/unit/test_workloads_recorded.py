"""Loaders of distributions and of agents' sessions: small files of their own, and the public ones where they are there."""

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Chain, Program
from shared.sim.workloads import spot_capacity, workload
from shared.sim.workloads.lengths import Lognormal

DATA = Path(__file__).parents[2] / "../shared/data"


def public(kind: str, path: str, count: int, seconds: float = 1e6, **settings: Any) -> list[Program]:
    """The first programs of a public file; the test is skipped where it is not there."""
    if not DATA.exists():
        pytest.skip(f"the public data is not there: {DATA}")
    return list(itertools.islice(workload(kind, {"path": path, **settings}, seconds, 1, DATA), count))


def reusable(program: Program) -> float:
    """The share of full blocks of 16 tokens that an infinite cache would have of the same program's prompts and answers."""
    seen: set[int] = set()
    hits = blocks = 0
    for call in program.calls:
        chain = Chain((*call.prompt, call.output), 16)
        prompt = list(chain.first(call.prompt_tokens // 16))
        hits += sum(block in seen for block in prompt)
        blocks += len(prompt)
        seen.update(chain.first((call.prompt_tokens + call.output.tokens) // 16))
    return hits / blocks


def gap_cv(programs: list[Program]) -> float:
    gaps = [later.begins_s - earlier.begins_s for earlier, later in itertools.pairwise(programs)]
    return statistics.stdev(gaps) / statistics.fmean(gaps)


# ServeGen


def servegen(folder: Path, trace: str, lengths: dict[str, Any]) -> Path:
    (folder / "tenant-trace.csv").write_text(trace)
    (folder / "tenant-dataset.json").write_text(json.dumps(lengths))
    return folder


WINDOWS = "0,4.0,2.0,Gamma,0.25,1.0\n600,0,0,,0,0\n1200,2.0,1.0,Weibull,1.0,0.5\n"
LENGTHS = {
    "0": {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{5: 1.0}"},
    "1200": {"input_tokens": "{7: 1.0}", "output_tokens": "{2: 1.0}", "reason_ratio": "{}"},
}


def test_a_tenant_has_the_rates_gaps_and_lengths_of_its_windows(tmp_path: Path) -> None:
    folder = servegen(tmp_path, WINDOWS, LENGTHS)
    programs = list(workload("servegen", {"path": "tenant", "rate": 10}, 1_800, 1, folder))
    first = [program for program in programs if program.begins_s < 600]
    last = [program for program in programs if program.begins_s >= 1_200]
    assert len(first) == pytest.approx(24_000, rel=0.05)
    assert len(last) == pytest.approx(12_000, rel=0.05)
    assert len(first) + len(last) == len(programs)  # nothing is asked in the window without requests
    assert gap_cv(first) == pytest.approx(2.0, rel=0.05)
    assert gap_cv(last) == pytest.approx(1.0, rel=0.05)
    assert statistics.fmean(program.calls[0].prompt_tokens for program in first) == pytest.approx(25, rel=0.02)
    assert {(program.calls[0].prompt_tokens, program.calls[0].output.tokens) for program in last} == {(7, 2)}
    assert {program.tenant for program in programs} == {"tenant"}


def test_a_tenant_can_begin_anywhere_in_its_trace_and_goes_on_from_its_beginning(tmp_path: Path) -> None:
    folder = servegen(tmp_path, WINDOWS, LENGTHS)
    settings = {"path": "tenant", "from_s": 1_500, "tenants": [{"name": "other"}]}
    programs = list(workload("servegen", settings, 1_200, 1, folder))
    assert {program.tenant for program in programs} == {"other"}
    assert {program.calls[0].prompt_tokens for program in programs if program.begins_s < 300} == {7}
    assert {program.calls[0].prompt_tokens for program in programs if program.begins_s >= 300} == {10, 30}
    assert max(program.begins_s for program in programs) < 900


@pytest.mark.parametrize(
    ("trace", "lengths", "named"),
    [
        ("0,4.0,2.0,Pareto,0.25,1.0\n", LENGTHS, "line 1: the family of gaps is 'Pareto'"),
        ("0,4.0,2.0\n", LENGTHS, "line 1"),
        ("0,1,1,Gamma,1,1\n900,1,1,Gamma,1,1\n", LENGTHS, "a row for each 600 s"),
        ("", LENGTHS, "a row for each 600 s"),
        (WINDOWS, {"0": {"input_tokens": "{}", "output_tokens": "{5: 1.0}"}}, "nothing about the lengths of the 6 hours from 0 s"),
        (WINDOWS, {"0": {"input_tokens": "what", "output_tokens": "{5: 1.0}"}}, "nothing about the lengths"),
        (WINDOWS, {}, "nothing about the lengths"),
        (WINDOWS, [], "dataset.json: Expected `object`"),
    ],
)
def test_files_that_describe_no_tenant_are_refused(trace: str, lengths: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=named):
        list(workload("servegen", {"path": "tenant"}, 600, 1, servegen(tmp_path, trace, lengths)))


@pytest.mark.parametrize(
    ("tenant", "from_s", "rate"),
    [
        ("language_m-small-chunk-14", 0, 19.05),
        ("language_m-small-chunk-27", 0, 88.06),
        ("reason_deepseek-r1-chunk-3", 7_200, 12.41),
        ("reason_deepseek-r1-chunk-48", 0, 2.53),
    ],
)
def test_the_public_tenants_have_the_rate_of_their_window(tenant: str, from_s: float, rate: float) -> None:
    programs = public("servegen", f"traces/servegen/{tenant}", 100_000, 600, from_s=from_s, rate=0.5)
    assert len(programs) == pytest.approx(rate * 300, rel=0.25)  # the first is very bursty
    assert programs[0].tenant == tenant


# Claude Code


def event(uuid: str, parent: str | None, message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "parentUuid": parent,
        "timestamp": "2026-02-07T01:00:00.000Z",
        **({"message": message} if message else {}),
        **more,
    }


def said(name: str, usage: tuple[int, int, int], content: list[dict[str, Any]]) -> dict[str, Any]:
    new, created, read = usage
    tokens = {"input_tokens": new, "cache_creation_input_tokens": created, "cache_read_input_tokens": read, "output_tokens": 2}
    return {"id": name, "model": "large", "usage": tokens, "content": content}


TEXT = {"type": "text", "text": "x" * 400}
SESSION = [
    {"type": "summary", "summary": "no uuid, no message"},
    event("u1", None, {"role": "user", "content": "do it"}),
    event("a1", "u1", said("m1", (3, 997, 1_000), [TEXT])),
    event("a2", "a1", said("m1", (3, 997, 1_000), [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "y" * 400}}])),
    event("u2", "a2", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}]}),
    event("a3", "u2", said("m2", (5, 595, 2_000), [{"type": "tool_use", "id": "t2", "name": "Task", "input": {}}])),
    event("s1", None, {"role": "user", "content": "a part of it"}, isSidechain=True),
    event("b1", "s1", said("m3", (5, 495, 1_000), [TEXT]), isSidechain=True),
    event("b2", "b1", said("m4", (5, 95, 1_500), [TEXT]), isSidechain=True),
    event("u3", "a3", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "found"}]}),
    event("a4", "u3", said("m5", (5, 400, 2_595), [TEXT])),
    event("a5", "a4", said("m6", (5, 200, 2_995), [TEXT])),
]
TOOLS = [
    {"id": "t1", "tool": "Bash", "timestamp": "2026-02-07T01:00:00.000Z", "end_timestamp": "2026-02-07T01:00:02.500Z"},
    {"id": "t2", "tool": "Task", "timestamp": "2026-02-07T01:00:00.000Z", "end_timestamp": "2026-02-07T01:00:30.000Z"},
    {"id": "t3", "tool": "Bash", "timestamp": "2026-02-07T01:00:00.000Z"},
]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions" / "one"
    folder.mkdir(parents=True)
    (folder / "trace.jsonl").write_text("\n".join(json.dumps(line) for line in SESSION))
    (folder / "tool_calls.json").write_text(json.dumps(TOOLS))
    return tmp_path


def played(sessions: Path, count: int = 1) -> list[Program]:
    return list(itertools.islice(workload("claude-code", {"path": "sessions"}, 1e6, 1, sessions), count))


def test_a_message_in_several_events_is_one_call_and_prompts_grow_as_recorded(sessions: Path) -> None:
    (program,) = played(sessions)
    assert [call.prompt_tokens for call in program.calls] == [2_000, 2_600, 1_500, 1_600, 3_000, 3_200]
    first, second = program.calls[:2]
    assert first.output.tokens > 200  # from its texts, not the 2 of the stream's beginning
    assert second.prompt[: len(first.prompt) + 1] == (*first.prompt, first.output)


def test_a_call_waits_for_its_tools_or_for_the_sub_agent_that_was_one(sessions: Path) -> None:
    (program,) = played(sessions)
    assert [(call.key, call.after, call.wait_s) for call in program.calls] == [
        ("main-1", (), 0.0),
        ("main-2", ("main-1",), 2.5),
        ("agent-1-1", ("main-2",), 0.0),
        ("agent-1-2", ("agent-1-1",), 0.0),
        ("main-3", ("main-2", "agent-1-2"), 0.0),
        ("main-4", ("main-3",), 0.0),
    ]


def test_sessions_share_what_was_cached_when_they_began_and_no_more(sessions: Path) -> None:
    one, other = played(sessions, 2)
    assert one.calls[0].prompt[0] == other.calls[0].prompt[0] == one.calls[2].prompt[0]
    assert one.calls[0].prompt[0].tokens == 1_000
    assert one.calls[0].prompt[1].content != other.calls[0].prompt[1].content


def test_sessions_that_are_none_are_refused(sessions: Path) -> None:
    (sessions / "sessions/one/tool_calls.json").unlink()
    with pytest.raises(LegatoError, match=r"cannot read .*tool_calls.json"):
        played(sessions)
    (sessions / "sessions/one/trace.jsonl").write_text("{}\n")
    (sessions / "sessions/one/tool_calls.json").write_text("[]")
    with pytest.raises(LegatoError, match="no folders with calls"):
        played(sessions)
    (sessions / "sessions/one/trace.jsonl").write_text("{}\nwhat\n")
    with pytest.raises(LegatoError, match=r"trace.jsonl, line 2"):
        played(sessions)


def test_the_public_sessions_of_claude_code_are_whole() -> None:
    programs = public("claude-code", "agents/claude_code", 100)
    different = {len(program.calls): program for program in programs}
    assert set(different) == {27, 18, 15, 36}  # two of the five have 27
    calls = [call for program in programs for call in program.calls]
    assert statistics.fmean(call.prompt_tokens for call in calls) == pytest.approx(24_500, rel=0.05)
    assert statistics.fmean(reusable(program) for program in different.values()) == pytest.approx(0.93, abs=0.03)


# Mini-SWE-agent


def line(at: int, prompt: str, output: str = "o" * 80) -> str:
    return json.dumps({"timestamp": at, "input": prompt, "output": output, "session_id": "s"}) + "\n"


def test_prompts_share_what_their_texts_have_in_common(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(
        line(30, "a" * 4_000 + "b" * 200 + "c" * 600) + line(10, "a" * 4_000) + line(20, "a" * 4_000 + "b" * 400)
    )
    first, second, third = next(workload("miniswe", {"path": "."}, 1e6, 1, tmp_path)).calls
    assert [call.prompt_tokens for call in (first, second, third)] == [1_000, 1_100, 1_200]
    assert second.prompt[:1] == third.prompt[:1] == first.prompt
    assert third.prompt[1] == (second.prompt[1].content, 50)
    assert not {first.output, second.output} & {*second.prompt, *third.prompt}
    assert first.output.tokens == 20
    assert (first.wait_s, first.after, second.after) == (0, (), ("call-1",))
    assert second.wait_s > 0


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=r"no files \*\.jsonl"):
        workload("miniswe", {"path": "."}, 10, 1, tmp_path)


def test_the_public_sessions_of_mini_swe_agent_are_whole() -> None:
    programs = public("miniswe", "agents/lmcache_miniswe", 100)
    by_length = {tuple(call.prompt_tokens for call in program.calls): program for program in programs}
    assert len(by_length) == 7
    assert sum(len(program.calls) for program in by_length.values()) == 76
    assert statistics.fmean(reusable(program) for program in by_length.values()) == pytest.approx(0.89, abs=0.03)


# AIPerf


def law(median: float, sigma: float, most: float | None = None) -> dict[str, Any]:
    return {"mu": math.log(median), "sigma": sigma, "max": most, "mean": None}


def manifest(base: float = 0.0) -> dict[str, Any]:
    return {
        "seed": 42,
        "generation_params": {
            "new_tokens_per_turn": law(100, 0.5, 1_000),
            "generation_length": law(50, 0.5),
            "inter_turn_delay": {"agentic_fraction": 0.75, "agentic_delay": law(2_000, 0), "human_delay": law(10_000, 0)},
            "reset": {"base_probability": base, "context_scaling": 1.5},
            "max_prompt_tokens": 5_000,
            "cache": {
                "layer1_tokens": 1_000,
                "layer1_5_tokens": 500,
                "layer2": law(200, 0.5, 500),
                "layer1_5_groups": {"num_groups": 2, "zipf_alpha": 1.0},
            },
        },
    }


def agentic(folder: Path, count: int, base: float = 0.0, **settings: Any) -> list[Program]:
    (folder / "manifest.json").write_text(json.dumps(manifest(base)))
    return list(itertools.islice(workload("aiperf", {"path": "manifest.json", **settings}, 1e6, 1, folder), count))


def test_agents_of_a_manifest_have_its_layers_lengths_and_delays(tmp_path: Path) -> None:
    programs = agentic(tmp_path, 1_000)
    first = [program.calls[0].prompt for program in programs]
    assert len({prompt[0] for prompt in first}) == 1
    groups = [prompt[1] for prompt in first]
    assert sorted(groups.count(group) / 1_000 for group in dict.fromkeys(groups)) == pytest.approx([1 / 3, 2 / 3], abs=0.05)
    assert len({prompt[2] for prompt in first}) == 1_000
    calls: list[Call] = [call for program in programs for call in program.calls]
    assert max(call.prompt_tokens for call in calls) < 5_000
    assert statistics.fmean(len(program.calls) for program in programs) > 10  # they end where the next prompt would be too long
    waits = [call.wait_s for call in calls if call.after]
    assert sorted({round(wait_s, 3) for wait_s in waits}) == [2, 10]
    assert statistics.fmean(waits) == pytest.approx(0.75 * 2 + 0.25 * 10, rel=0.03)


def test_agents_of_a_manifest_end_by_chance_and_at_the_most_calls_that_are_set(tmp_path: Path) -> None:
    one, often = agentic(tmp_path, 300, 0.2), agentic(tmp_path, 300, 0.0)
    assert statistics.fmean(len(program.calls) for program in one) < 6 < statistics.fmean(len(program.calls) for program in often)
    assert {len(program.calls) for program in agentic(tmp_path, 20, calls_max=4)} == {4}


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"generation_params": {}}')
    with pytest.raises(LegatoError, match=r"no manifest of an agentic data set: .*new_tokens_per_turn"):
        workload("aiperf", {"path": "manifest.json"}, 10, 1, tmp_path)


def test_agents_of_the_public_manifest_have_its_means() -> None:
    programs = public("aiperf", "agents/aiperf_inference-day-2026_manifest.json", 2_000)
    calls = [call for program in programs for call in program.calls]
    opened = Lognormal(median=5_000, sigma=1.4823, max=50_000)  # what the manifest says
    assert statistics.fmean(program.calls[0].prompt_tokens for program in programs) == pytest.approx(42_000 + opened.mean, rel=0.03)
    assert statistics.fmean(call.output.tokens for call in calls) == pytest.approx(991, rel=0.03)
    new = [
        later.prompt_tokens - earlier.prompt_tokens - earlier.output.tokens
        for program in programs
        for earlier, later in itertools.pairwise(program.calls)
    ]
    assert statistics.fmean(new) == pytest.approx(5_758, rel=0.05)


# Spot capacity


def test_spot_capacity_is_given_where_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "spot.json"
    path.write_text('{"metadata": {"gap_seconds": 100}, "data": [4, 4, 2, 2, 0, 4]}')
    assert spot_capacity(path) == [(0, 1), (200, 0.5), (400, 0), (500, 1)]
    path.write_text('{"metadata": {"gap_seconds": 100}, "data": [0, 0]}')
    assert spot_capacity(path) == [(0, 0)]


@pytest.mark.parametrize("text", ["[]", '{"metadata": {"gap_seconds": 0}, "data": [1]}', '{"metadata": {"gap_seconds": 1}, "data": []}'])
def test_what_is_no_trace_of_spot_capacity_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=r"cannot read .*no-such"):
        spot_capacity(tmp_path / "no-such.json")
    (tmp_path / "spot.json").write_text(text)
    with pytest.raises(LegatoError, match="no trace of spot capacity"):
        spot_capacity(tmp_path / "spot.json")


def test_the_public_spot_traces_can_be_read() -> None:
    if not DATA.exists():
        pytest.skip(f"the public data is not there: {DATA}")
    held = spot_capacity(DATA / "spot/preemption/us-west-2c_v100_1.json")
    assert {share for _, share in held} == {0, 0.25, 0.5, 0.75, 1}
    for path in sorted((DATA / "spot/availability").glob("*.json")):
        changes = spot_capacity(path)
        assert {share for _, share in changes} == {0, 1}
        assert all(at_s % 195 == 0 for at_s, _ in changes)
