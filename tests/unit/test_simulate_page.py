"""The report: one well-formed file that asks nobody for anything."""

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec import structs

from legato.simulate.chart import Axis, Line, Range, line_chart, range_chart
from legato.simulate.comparison import compare
from legato.simulate.page import page
from tests.thought_runs import POOL, thought_report, thought_scenario

VOID = {"br", "meta"}
EVIL = '<script>alert("x")</script>&'


def made(*policies: str, seeds: int = 2, fleets: dict[str, int] | None = None, sets: dict[str, dict[str, Any]] | None = None) -> str:
    """`fleets`: how many workers a policy has, where not two; `sets`: what it sets."""
    reports = [
        thought_report(policy, seed, 1.0 + index + seed / 10) for seed in range(1, seeds + 1) for index, policy in enumerate(policies)
    ]
    pools = {policy: {"h100": structs.replace(POOL, count=(fleets or {}).get(policy, 2))} for policy in policies}
    played = {policy: thought_scenario(question=EVIL, pools=pools[policy]) for policy in policies}
    return page(played, {policy: (sets or {}).get(policy, {}) for policy in policies}, compare(reports), reports)


class Nesting(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("policies", [("near",), ("near", "far"), tuple(f"policy {number}" for number in range(9))], ids=["1", "2", "9"])
def test_a_page_is_well_formed_and_asks_nobody(policies: tuple[str, ...]) -> None:
    text = made(*policies)
    reader = Nesting()
    reader.feed(text)
    assert not reader.open
    assert not reader.addresses
    assert not re.search(r"url\(|@import|https?:", text)
    assert "script" not in reader.seen
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(chart)
    assert reader.seen.count("svg") >= 8


def test_what_others_wrote_is_text() -> None:
    text = made("near", EVIL)
    assert EVIL not in text
    assert "&lt;script&gt;" in text


def test_a_page_follows_light_and_dark() -> None:
    text = made("near")
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", text))
    for scheme in re.findall(r":root \{(.*?)\}", text):
        assert used <= set(re.findall(r"(--[a-z0-9]+):", scheme)), "each colour is there in both"


def test_a_page_says_what_is_sure_and_what_one_seed_is_worth() -> None:
    text = made("near", "far", seeds=3)
    assert "95% interval" in text
    assert 'class="bad">+' in text
    assert "Where each loses" in text
    alone = made("near", "far", seeds=1)
    assert "One seed says nothing about chance" in alone
    assert ">-</small>" not in alone, "where there is no interval there is no line for it"


def test_a_page_says_what_each_policy_sets_and_its_fleet_where_they_differ() -> None:
    of_service = {"far": {"scheduler.order": "edf", "scheduler.preempt_gap": 0}}
    text = made("near", "far", sets=of_service)
    assert "scheduler.order = edf, scheduler.preempt_gap = 0<" in text
    assert text.count("2 x llama-3.1-8b@h100:vllm (h100); chat; 60 s") == 1, "what all have is said once"
    assert "as the scenario says for all" in text
    other = made("near", "far", fleets={"near": 1, "far": 4}, sets={"near": {"pools.h100.count": 1}, "far": {"pools.h100.count": 4}})
    for count in (1, 4):
        assert f"pools.h100.count = {count}<" in other
        assert other.count(f"{count} x llama-3.1-8b@h100:vllm (h100)") == 1
    assert "as the scenario says for all" not in other
    assert "The scenario, with policy near" in other


def test_a_line_goes_where_its_numbers_are() -> None:
    chart = line_chart("t", [Line("a", [(0.0, 0.0), (10.0, 5.0), (20.0, None), (30.0, 10.0)])], Axis("s"), Axis("steps"))
    lines = re.findall(r'points="([^"]*)"', chart)
    assert lines == ["58.0,212.0 220.7,119.0", "546.0,26.0"], "a gap where nothing is known; 0 below, the most on top"


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show() -> None:
    chart = line_chart("t", [Line("a", [(0.0, 0.1), (1.0, 0.5), (100.0, 1.0)])], Axis("s", log=True), Axis(""))
    (points,) = re.findall(r'points="([^"]*)"', chart)
    assert points.startswith("58.0,")
    assert points.count(",") == 2
    assert re.findall(r'text-anchor="middle">([^<]*)<', chart) == ["1", "10", "100"]


@pytest.mark.parametrize("log", [True, False])
def test_charts_of_little_are_drawn_all_the_same(log: bool) -> None:
    assert line_chart("t", [], Axis("", log=log), Axis("")) == ""
    assert range_chart("t", [Range("a", [])], Axis("", log=log)) == ""
    for values in ([3.0], [3.0, 3.0, 3.0], [1e-9, 1e9, 1e9]):
        assert "NaN" not in range_chart("t", [Range("a", values), Range("b", [])], Axis("", log=log)).replace("nan", "NaN")
    assert "polyline" in line_chart("t", [Line("a", [(1.0, 0.0)])], Axis("", log=log), Axis(""))
