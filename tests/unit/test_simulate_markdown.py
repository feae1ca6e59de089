"""The table that is kept in documents: the best are bold, and only sure differences are told."""

from datetime import date
from typing import Any

from msgspec import structs

from legato.simulate.comparison import compare
from legato.simulate.markdown import markdown
from tests.thought_runs import POOL, thought_report, thought_scenario

DAY = date(2026, 11, 30)


def made(*policies: str, seeds: int = 3, question: str = "", sets: dict[str, dict[str, Any]] | None = None) -> str:
    """`sets`: what a policy sets, as far as `pools.h100.count` also what it is played with."""
    reports = [
        thought_report(policy, seed, 1.0 + index + seed / 10) for seed in range(1, seeds + 1) for index, policy in enumerate(policies)
    ]
    settings = {policy: (sets or {}).get(policy, {}) for policy in policies}
    counts = {policy: own.get("pools.h100.count", 2) for policy, own in settings.items()}
    played = {
        policy: thought_scenario(question=question, pools={"h100": structs.replace(POOL, count=counts[policy])}) for policy in policies
    }
    return markdown(played, settings, compare(reports), "legato simulate it.toml --seeds 3", DAY)


def row(text: str, figure: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {figure} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_it_says_what_made_it_when_and_from_which_seeds() -> None:
    text = made("near", "far", question="Which?")
    assert text.startswith("# ")
    assert "`legato simulate it.toml --seeds 3`, 30 November 2026, seeds 1 to 3." in text
    assert "Which?" in text


def test_what_a_policy_sets_has_a_line() -> None:
    text = made(
        "near",
        "far",
        "scheduler.order=edf",
        sets={"far": {"scheduler.order": "fcfs", "pools.h100.model": "a\n- b"}, "scheduler.order=edf": {"scheduler.order": "edf"}},
    )
    assert "\n2 x llama-3.1-8b@h100:vllm (h100); chat; 60 s.\n" in text
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        '- `far`: scheduler.order = fcfs, pools.h100.model = "a\\n- b"'
    ], "names that say it are enough"


def test_where_fleets_differ_each_policy_has_its_own() -> None:
    text = made("near", "far", sets={"far": {"pools.h100.count": 4}})
    assert [line for line in text.splitlines() if "x llama-3.1" in line] == [
        "- `near`: 2 x llama-3.1-8b@h100:vllm (h100); chat; 60 s",
        "- `far`: pools.h100.count = 4; 4 x llama-3.1-8b@h100:vllm (h100); chat; 60 s",
    ]


def test_the_best_is_bold_and_a_sure_difference_is_told() -> None:
    near, far = row(made("near", "far"), "ttft_p50_s")
    assert near.startswith("**")
    assert "(+" in far
    assert not far.startswith("**")


def test_what_looks_equal_has_no_best() -> None:
    assert "*" not in "".join(row(made("near", "near too", seeds=1), "program_success"))


def test_one_seed_is_sure_of_nothing() -> None:
    text = made("near", "far", seeds=1)
    assert "seed 1." in text
    assert "(" not in "".join(row(text, "ttft_p50_s"))


def test_a_name_stays_in_its_cell() -> None:
    assert "| a\\|b |" in made("a|b")
