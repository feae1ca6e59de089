"""The page of planted bugs says which were caught, and shows what was said as it was said."""

import sys
from datetime import date

import pytest

from bench.sim.__main__ import main
from bench.sim.mutation_table import SAID_MAX, Caught, mutation_table


def page(*rows: Caught) -> list[str]:
    return mutation_table(rows, 400, "1 of 2 planted bugs were caught; missed: b", date(2026, 11, 30)).splitlines()


def test_a_bug_that_is_caught_has_its_seed_and_the_invariant_that_broke() -> None:
    lines = page(Caught("no-fence", "no fence", 26, "invariant 2: p2 has tokens behind its end"))
    assert "| no-fence | no fence | 26 | 2 | `p2 has tokens behind its end` |" in lines


def test_a_bug_that_is_not_caught_says_so() -> None:
    assert "| b | a bug | not caught | - | - |" in page(Caught("b", "a bug", None, ""))
    assert "1 of 2 planted bugs were caught; missed: b." in page(Caught("b", "a bug", None, ""))


def test_what_was_said_stays_in_its_cell() -> None:
    (row,) = (line for line in page(Caught("c", "a bug", 1, "invariant 8: `x` | " + "y" * 300)) if line.startswith("| c "))
    assert row.count("|") == 6
    assert len(row.split("|")[5]) <= SAID_MAX + 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mutations", "--table", "there/is/none.md"], "there is no directory"),
        (["--table", "x.md"], "say both"),
        (["--seed", "3", "--log", "there/is/none.log"], "there is no directory"),
        (["--seed", "3", "--log", "x" * 300], "File name too long"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.sim", *options])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err
