"""Workloads: generators against what they document, determinism, laziness, what prompts share, and bad settings."""

import itertools
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.core.errors import LegatoError
from shared.sim.programs import Call, Chain, Program
from shared.sim.workloads import kinds, together, workload
from shared.sim.workloads.autonomous import Autonomous
from shared.sim.workloads.chat import Chat
from shared.sim.workloads.copilot import Copilot
from shared.sim.workloads.dag import Dag
from shared.sim.workloads.research import Research
from shared.sim.workloads.single import Single

GENERATORS = ("single", "chat", "copilot", "research", "autonomous", "dag")
SHORT = {"autonomous": {"calls_max": 100}}  # settings that keep a test short


def made(kind: str, count: int, seed: int = 1, **settings: Any) -> list[Program]:
    """The first programs of a workload that has more."""
    return list(itertools.islice(workload(kind, SHORT.get(kind, {}) | settings, 1e6, seed), count))


def calls_of(programs: list[Program]) -> list[Call]:
    return [call for program in programs for call in program.calls]


def shared_blocks(one: Call, other: Call, block_tokens: int = 16) -> int:
    """Full blocks at the beginning that both prompts have."""
    chains = [Chain(call.prompt, block_tokens).first(call.prompt_tokens // block_tokens) for call in (one, other)]
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*chains, strict=False)))


@pytest.mark.parametrize("kind", GENERATORS)
def test_programs_come_in_order_with_ids_of_their_own_and_calls_after_those_they_name(kind: str) -> None:
    programs = made(kind, 40)
    assert [program.begins_s for program in programs] == sorted(program.begins_s for program in programs)
    assert len({program.id for program in programs}) == len(programs)
    for program in programs:
        assert program.kind == kind
        before: set[str] = set()
        for call in program.calls:
            assert call.key not in before
            assert before.issuperset(call.after)
            assert bool(call.after) == bool(before)  # only the first call waits for none
            assert call.wait_s >= 0
            assert min(segment.tokens for segment in (*call.prompt, call.output)) >= 1
            before.add(call.key)


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_workload_follows_from_its_seed(kind: str) -> None:
    assert made(kind, 5) == made(kind, 5)
    assert made(kind, 5) != made(kind, 5, seed=2)


def test_a_workload_is_the_same_whatever_the_hash_seed() -> None:
    script = (
        "import hashlib, itertools; from shared.sim.workloads import workload;"
        "print(hashlib.sha256(repr([list(itertools.islice(workload(kind, {}, 1e5, 7), 3))"
        f" for kind in {GENERATORS!r} if kind != 'autonomous']).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "31337")
    }
    assert len(seen) == 1


def test_a_workload_is_made_while_it_is_read() -> None:
    endless = workload("chat", {"rate_per_s": 1_000}, 31_536_000, 1)  # 31 billion programs
    assert next(endless).id == "chat-1"
    assert next(endless).id == "chat-2"


@pytest.mark.parametrize("kind", GENERATORS)
def test_programs_begin_within_the_time_and_at_the_rate_that_is_asked_for(kind: str) -> None:
    settings = {"autonomous": {"calls_max": 1}}.get(kind, {})
    programs = list(workload(kind, {"rate_per_s": 0.1, **settings}, 10_000, 1))
    assert len(programs) == pytest.approx(1_000, rel=0.1)
    assert 0 <= programs[0].begins_s < programs[-1].begins_s < 10_000


def test_another_rate_leaves_the_programs_as_they_are() -> None:
    slow, fast = made("chat", 20), made("chat", 20, rate_per_s=50, arrivals={"cv": 3.0})
    assert [program.calls for program in slow] == [program.calls for program in fast]
    assert slow[5].begins_s > fast[5].begins_s


def test_single_requests_have_the_documented_lengths() -> None:
    calls = calls_of(made("single", 20_000))
    settings = Single()
    assert statistics.fmean(call.prompt_tokens for call in calls) == pytest.approx(1_155, rel=0.03)
    assert statistics.fmean(call.prompt_tokens for call in calls) == pytest.approx(settings.system_tokens + settings.prompt.mean, rel=0.03)
    assert statistics.fmean(call.output.tokens for call in calls) == pytest.approx(211, rel=0.03)


def test_chats_have_the_documented_turns_and_lengths() -> None:
    programs = made("chat", 10_000, system_tokens=0)
    turns = [len(program.calls) for program in programs]
    assert statistics.fmean(turns) == pytest.approx(2.5, rel=0.03)
    assert sum(count == 1 for count in turns) / len(turns) == pytest.approx(1 / 2.5, rel=0.05)
    assert statistics.fmean(program.calls[0].prompt_tokens for program in programs) == pytest.approx(Chat().message.mean, rel=0.1)
    assert Chat().message.mean == pytest.approx(296, rel=0.02)
    calls = calls_of(programs)
    assert statistics.fmean(call.output.tokens for call in calls) == pytest.approx(441, rel=0.03)
    assert statistics.fmean(call.wait_s for call in calls if call.after) == pytest.approx(30, rel=0.05)
    assert not [call for call in calls if call.wait_s and not call.after]


def test_a_chat_ends_before_its_context_is_full() -> None:
    calls = calls_of(made("chat", 300, turns_mean=50, context_max=8_000))
    assert max(call.prompt_tokens + call.output.tokens for call in calls if call.after) <= 8_000


def test_a_copilot_has_the_documented_calls_growth_and_waits() -> None:
    programs = made("copilot", 1_000)
    settings = Copilot()
    assert {len(program.calls) for program in programs} == set(range(10, 21))
    assert statistics.fmean(len(program.calls) for program in programs) == pytest.approx(settings.calls.mean, rel=0.02)
    first = statistics.fmean(program.calls[0].prompt_tokens for program in programs)
    assert first == pytest.approx(settings.system_tokens + settings.task.mean, rel=0.02)
    growth = [later.prompt_tokens - earlier.prompt_tokens for program in programs for earlier, later in itertools.pairwise(program.calls)]
    assert statistics.fmean(growth) == pytest.approx(settings.result.mean + settings.output.mean, rel=0.05)
    assert statistics.fmean(growth) == pytest.approx(887, rel=0.05)  # of the recorded sessions
    waits = [call.wait_s for call in calls_of(programs) if call.after]
    assert statistics.fmean(waits) == pytest.approx(settings.tool_s.mean, rel=0.15)
    assert statistics.median(waits) == pytest.approx(0.1, rel=0.1)


def test_an_autonomous_agent_sums_up_what_it_has_when_its_context_is_full() -> None:
    (program,) = made("autonomous", 1, calls={"median": 400}, calls_max=400, context_max=40_000)
    assert len(program.calls) == 400
    assert max(call.prompt_tokens + call.output.tokens for call in program.calls) <= 40_000
    shrunk = [(a, b) for a, b in itertools.pairwise(program.calls) if b.prompt_tokens < a.prompt_tokens]
    assert len(shrunk) > 5
    for full, fresh in shrunk:
        assert fresh.prompt[:2] == program.calls[0].prompt  # system prompt and task
        assert full.output in fresh.prompt


def test_autonomous_agents_have_the_documented_number_of_calls() -> None:
    settings = {"result": {"median": 5_000}, "context_max": 40_000}  # short prompts, for a short test
    programs = [made("autonomous", 1, seed=seed, calls_max=5_000, **settings)[0] for seed in range(30)]
    assert statistics.median(len(program.calls) for program in programs) == pytest.approx(1_000, rel=0.25)
    assert Autonomous().calls.mean == pytest.approx(1_180, rel=0.02)


def test_research_has_the_documented_shape() -> None:
    programs = made("research", 500)
    settings = Research()
    each_round = 1 + settings.branches.mean * settings.steps.mean
    assert statistics.fmean(len(program.calls) for program in programs) == pytest.approx(settings.rounds.mean * each_round + 1, rel=0.03)
    program = programs[0]
    by_key = {call.key: call for call in program.calls}
    joins = [call for call in program.calls if len(call.after) > 1]
    assert 2 <= len(joins) <= 4
    for join in joins:
        assert {by_key[key].output for key in join.after} <= set(join.prompt)  # it reads what the branches reported
    branches = [call for call in program.calls if call.after == ("lead-1",)]
    assert 3 <= len(branches) <= 5


def test_a_graph_has_parallel_calls_that_begin_alike_and_joins_that_read_them_all() -> None:
    programs = made("dag", 1_000)
    settings = Dag()
    expected = 1 + settings.stages.mean * (settings.width.mean + 1)
    assert statistics.fmean(len(program.calls) for program in programs) == pytest.approx(expected, rel=0.03)
    for program in programs[:50]:
        by_key = {call.key: call for call in program.calls}
        joins = [call for call in program.calls if len(call.after) > 1]
        assert 2 <= len(joins) <= 4
        assert all(by_key[call.after[0]].output in call.prompt for call in program.calls if call.after)  # each reads what it waits for
        for join in joins:
            parallel = [by_key[key] for key in join.after]
            assert {call.output for call in parallel} <= set(join.prompt)
            assert len({call.after for call in parallel}) == 1
            for call in parallel[1:]:
                common = sum(segment.tokens for segment in call.prompt[:-1])
                assert shared_blocks(call, parallel[0]) == common // 16


def test_two_turns_of_a_chat_share_the_first_one_and_its_answer() -> None:
    program = next(program for program in made("chat", 100) if len(program.calls) > 2)
    first, second, third = program.calls[:3]
    assert shared_blocks(first, second) == first.prompt_tokens // 16
    assert Chain(second.prompt, 16).first((first.prompt_tokens + first.output.tokens) // 16) == Chain(
        (*first.prompt, first.output), 16
    ).first((first.prompt_tokens + first.output.tokens) // 16)
    assert shared_blocks(second, third) == second.prompt_tokens // 16


def test_two_chats_share_their_system_prompt_and_no_more() -> None:
    one, other = made("chat", 2, system_tokens=500)
    assert shared_blocks(one.calls[0], other.calls[0]) == 500 // 16
    one, other = made("chat", 2, system_tokens=0)
    assert shared_blocks(one.calls[0], other.calls[0], 1) == 0


def test_of_several_system_prompts_the_first_is_the_most_frequent() -> None:
    used = [program.calls[0].prompt[0].content for program in made("single", 3_000, system_prompts=3)]
    counts = sorted((used.count(content) for content in dict.fromkeys(used)), reverse=True)
    assert [count / len(used) for count in counts] == pytest.approx([6 / 11, 3 / 11, 2 / 11], rel=0.1)  # 1, 1/2, 1/3


def test_tenants_come_by_share_with_their_own_class_of_service_and_system_prompt() -> None:
    tenants = [
        {"name": "paying", "share": 1, "priority": 10, "objective": {"ttft_s": 0.5}, "behaviour": {"patience_s": 20}},
        {"name": "free", "share": 3, "objective": {"program_s": 60}},
    ]
    programs = made("single", 4_000, tenants=tenants, model="small")
    paying = [program for program in programs if program.tenant == "paying"]
    assert len(paying) / len(programs) == pytest.approx(0.25, rel=0.1)
    assert {(program.priority, program.objective.ttft_s, program.behaviour.patience_s, program.model) for program in paying} == {
        (10, 0.5, 20, "small")
    }
    free = next(program for program in programs if program.tenant == "free")
    assert free.priority == 0
    assert shared_blocks(paying[0].calls[0], free.calls[0]) == 0


def test_workloads_that_are_played_together_come_in_order_and_share_nothing() -> None:
    programs = list(together([("chat", {}), ("chat", {}), ("dag", {"rate_per_s": 0.5})], 100, 1))
    assert [program.begins_s for program in programs] == sorted(program.begins_s for program in programs)
    assert len({program.id for program in programs}) == len(programs)
    contents = [
        {segment.content for program in programs if program.id.startswith(name) for call in program.calls for segment in call.prompt}
        for name in ("chat-2-", "dag-")
    ]
    assert all(contents)
    assert not contents[0] & contents[1]
    assert [program.id for program in programs if program.id.startswith("chat-2-")] != []


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("chatt", {}, "'chatt'; choose one of single, chat"),
        ("chat", {"turn_mean": 3}, "`turn_mean`.*turns_mean"),
        ("chat", {"turns_mean": 0.5}, r"turns_mean"),
        ("chat", {"rate_per_s": 0}, "rate_per_s"),
        ("chat", {"rate_per_s": float("nan")}, "rate_per_s"),
        ("chat", {"message": {"median": 5, "sigm": 1}}, "sigm"),
        ("chat", {"arrivals": {"family": "pareto"}}, "pareto"),
        ("chat", {"arrivals": {"flashes": [{"at_s": 5}]}}, "flashes"),
        ("chat", {"tenants": []}, "tenants"),
        ("chat", {"tenants": [{"name": "a b"}]}, "name"),
        ("chat", {"tenants": [{"objective": {"tttf_s": 1}}]}, "tttf_s"),
        ("chat", {"tenants": [{"objective": {"ttft_s": -1}}]}, "ttft_s is -1"),
        ("chat", {"tenants": [{"behaviour": {"patience_s": float("nan")}}]}, "patience_s is nan"),
        ("copilot", {"calls": {"least": 5, "most": 4}}, "least 5 is more than most 4"),
        ("autonomous", {"calls_max": 0}, "calls_max"),
        ("copilot", {"context_max": 20_000}, "context_max 20000 is too small"),
        ("azure", {"path": "nowhere.csv"}, r"nowhere.csv is not there: get it from https://github.com/Azure"),
        ("mooncake", {"path": "nowhere.jsonl"}, r"nowhere.jsonl is not there.*generators need no files"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_played(kind: str, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=named):
        workload(kind, settings, 60, 1, tmp_path)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_workload_lasts_a_time_that_there_is(seconds: float) -> None:
    with pytest.raises(LegatoError, match="cannot last"):
        workload("chat", {}, seconds, 1)


def test_each_kind_says_in_a_line_what_it_is() -> None:
    assert set(GENERATORS) <= set(kinds())
    assert all(20 < len(text) < 120 for text in kinds().values())
