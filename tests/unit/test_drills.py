"""Drills that would strike nothing are refused: they would find nothing wrong."""

import sys
from pathlib import Path

import pytest

from bench import pauses
from bench.chaos import __main__ as chaos
from bench.sim import __main__ as sim


@pytest.mark.parametrize(
    ("drill", "words"),
    [
        (sim, ["--seeds", "0"]),
        (sim, ["--seeds", "-3"]),
        (sim, ["--jobs", "0"]),
        (sim, ["--plan", str(Path(__file__))]),
        (chaos, ["--streams", "0"]),
        (chaos, ["--workers", "0"]),
        (chaos, ["--seconds", "0"]),
        (chaos, ["--seconds", "nan"]),
        (pauses, ["--rounds", "0"]),
    ],
)
def test_a_drill_of_nothing_is_refused(
    drill: object, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["drill", *words])
    with pytest.raises(SystemExit) as refused:
        drill.main()  # type: ignore[attr-defined]
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err
