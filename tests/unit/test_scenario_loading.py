"""Scenario files: what they may say, and what is said of what they may not."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legato.simulate.loading import changed, read, shipped
from legato.simulate.scenario import Pool, Scenario
from legato.simulate.variants import scenarios, set_by
from shared.runtime.config import ConfigError

PLAIN = """
seconds = 60

[pools.h100]
law = "llama-3.1-8b@h100:vllm"
count = 2

[[workload]]
kind = "chat"
with = {rate_per_s = 2.0}

[policies.default]

[policies.hasty]
scheduler.match_wait_ms = 0
"scheduler.preempt_gap" = 0
"""

LONG = "x" * 5_000

Load = Callable[..., dict[str, Scenario]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(text: str = PLAIN, *overrides: str, policies: tuple[str, ...] = ()) -> dict[str, Scenario]:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return scenarios(changed(read(str(path)), overrides), policies)

    return loaded


def said(load: Load, *words: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(*words, **options)
    return str(error.value)


def test_a_policy_is_settings_of_services_however_toml_writes_them(load: Load) -> None:
    found = load()
    assert list(found) == ["default", "hasty"]
    assert found["hasty"].name == "mine"
    assert found["hasty"].policies == {"hasty": {"scheduler.match_wait_ms": 0, "scheduler.preempt_gap": 0}}
    assert found["default"].policies == {"default": {}}


def test_without_policies_there_is_the_services_default(load: Load) -> None:
    text = PLAIN.partition("[policies.default]")[0]
    assert list(load(text)) == ["default"]


def test_policies_are_chosen_in_the_order_in_which_they_are_wanted(load: Load) -> None:
    assert list(load(policies=("hasty", "default"))) == ["hasty", "default"]


def test_a_policy_can_be_said_in_place(load: Load) -> None:
    name = "scheduler.match_wait_ms=1.5,scheduler.queue_max=10"
    found = load(policies=(name,))
    assert found[name].policies == {name: {"scheduler.match_wait_ms": 1.5, "scheduler.queue_max": 10}}


def test_a_policy_that_is_said_in_place_may_change_the_fleet_and_the_load(load: Load) -> None:
    name = "pools.h100.count=4,workload.0.with.rate_per_s=2.5,scheduler.queue_max=10"
    found = load(policies=(name,))[name]
    assert (found.pools["h100"].count, found.workload[0].settings["rate_per_s"]) == (4, 2.5)
    assert found.policies == {name: {"scheduler.queue_max": 10}}


def test_a_policy_may_change_the_fleet(load: Load) -> None:
    found = load(PLAIN + "\n[policies.large]\npools.h100.count = 8\n")
    assert found["large"].pools["h100"].count == 8
    assert found["large"].policies == {"large": {}}
    assert found["default"].pools["h100"].count == 2


def test_all_that_a_policy_sets_is_known_by_whole_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN + "\n[policies.large]\npools.h100 = {count = 8, autoscaler = {}}\nscheduler.queue_max = 9\nseconds = 30\n")
    found = set_by(read(str(path)), ("large", "default", "workload.0.with.rate_per_s=4,faults.restart_s=1"))
    assert found == {
        "large": {"pools.h100.count": 8, "pools.h100.autoscaler": {}, "scheduler.queue_max": 9, "seconds": 30},
        "default": {},
        "workload.0.with.rate_per_s=4,faults.restart_s=1": {"workload.0.with.rate_per_s": 4, "faults.restart_s": 1},
    }


def test_the_command_line_changes_what_the_file_says(load: Load) -> None:
    overrides = ("seconds=30", "pools.h100.law=8b-h100", "workload.0.with.rate_per_s=7.5", "scheduler.queue_max=9", "faults.restart_s=1")
    found = load(PLAIN, *overrides)["default"]
    assert (found.seconds, found.pools["h100"].law, found.workload[0].settings["rate_per_s"]) == (30, "8b-h100", 7.5)
    assert found.services == {"scheduler.queue_max": 9}
    assert found.faults.restart_s == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seconds = 60", "secnds = 60", "unknown key secnds; did you mean seconds?"),
        ("count = 2", "cuont = 2", "pools.h100: unknown key cuont; did you mean count?"),
        ("count = 2", "count = 2\ncold = {image = 3}", "pools.h100: cold: unknown key image; did you mean image_s?"),
        ("count = 2", "count = -2", "pools.h100: count: expected int >= 0"),
        ("count = 2", 'count = "two"', "pools.h100: count: expected int"),
        ("count = 2", "count = 0", "pools.h100.count is 0, and no autoscaler launches any"),
        ("count = 2", "count = 2\nautoscaler = {min = 3, max = 1}", "pools.h100.autoscaler: min (3) is more than max (1)"),
        ("seconds = 60", "seconds = 60\nfaults = {worker_killed_every_s = 1e-7}", "faults.worker_killed_every_s is 1e-07 s: it must be 0"),
        ("count = 2", "count = 2\nusd_per_hour = inf", "pools.h100: usd_per_hour"),
        ('law = "llama-3.1-8b@h100:vllm"\n', "", "pools.h100: missing key law"),
        ("llama-3.1-8b@h100:vllm", "llama-9b@h100", "pools.h100.law: there is no model 'llama-9b'; there are"),
        ("llama-3.1-8b@h100:vllm", "fast", "pools.h100.law: no step law is called 'fast'; there are"),
        ("count = 2", 'eviction = "fifo"', "pools.h100: unknown eviction fifo; there are: lru, priority"),
        ('kind = "chat"', 'kind = "caht"', "workload.0: unknown kind caht; did you mean chat?"),
        ("rate_per_s = 2.0", "rate_per = 2.0", "workload.0.with: unknown key rate_per; did you mean rate_per_s?"),
        ("rate_per_s = 2.0", "rate_per_s = -2.0", "workload.0.with: rate_per_s: expected float > 0"),
        ("rate_per_s = 2.0", "tenants = [{objective = {ttft = 1}}]", "objective: unknown key ttft; did you mean ttft_s?"),
        ("rate_per_s = 2.0", 'tenants = [{name = "a"}, {name = "a"}]', "workload.0.with: tenants: two are called a"),
        (
            "rate_per_s = 2.0",
            "tenants = [{behaviour = {timeout_s = 3601}}]",
            "workload.0.with: the timeout_s of tenant default is 3601, and admission.timeout_max_ms grants 3600",
        ),
        ("[pools.h100]", "pools.other = 3\n[pools.h100]", "pools.other should be a table, [pools.other]"),
        ("[pools.h100]", '[pools."h 100"]', "pools.h 100: a pool's name has letters, digits, - and _"),
        ("[pools.h100]", "[pool.h100]", "there is no [pools.NAME]: a scenario needs at least one"),
        ("[[workload]]", "[[workloads]]", "there is no [[workload]]: a scenario needs at least one"),
        ("seconds = 60", "seconds = 60\nwarm_up_s = 60", "warm_up_s (60) must be less than seconds (60)"),
        ("scheduler.match_wait_ms", "scheduler.match_wait", "scheduler.match_wait=0: unknown key match_wait; did you mean match_wait_ms?"),
        ("scheduler.match_wait_ms = 0", "scheduler.match_wait_ms = 99", "expected float <= 50"),
        ("scheduler.match_wait_ms", "shceduler.match_wait_ms", "unknown key shceduler; did you mean scheduler?"),
        ("scheduler.match_wait_ms = 0", "scheduler = 0", "scheduler should be scheduler.SETTING"),
        ("count = 2", "count = 2\nautoscaler = {maxx = 4}", "unknown key maxx; did you mean max?"),
        ("[policies.default]", "[services]\nrouter.patience = 3\n[policies.default]", "unknown key patience; did you mean patience_ms?"),
        (
            "[policies.default]",
            "[policies.default]\npolicies.hasty.seconds = 3",
            "policies.default.policies.hasty.seconds: a policy sets no policies",
        ),
        ("[policies.default]", '[policies.default]\nname = "other"', "policies.default.name: a policy sets no name; it may set seconds"),
        ("[policies.default]\n\n[policies.hasty]", "[policies]\nhasty = 3\n[faults]", "policies.hasty should be a table, [policies.hasty]"),
        ("seconds = 60", "seconds = ", "mine.toml is not TOML"),
    ],
)
def test_a_file_that_cannot_be_says_what_would_be_right(load: Load, old: str, new: str, message: str) -> None:
    assert old in PLAIN
    assert message in said(load, PLAIN.replace(old, new))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seconds", "--set seconds: should be key=value"),
        ("secnds=3", "--set secnds=3: unknown key secnds; did you mean seconds?"),
        ("seconds=many", "seconds: expected float"),
        ("seconds.x=3", "seconds is no table"),
        ("pools.h100.cuont=3", "unknown key cuont; did you mean count?"),
        ("pools.a100.count=3", "--set pools.a100.count=3: unknown pool a100; did you mean h100?"),
        ("pools.a100.law=8b-h100", "--set pools.a100.law=8b-h100: unknown pool a100; did you mean h100?"),
        ('pools.other={law = "8b-h100"}', "unknown pool other; there are: h100"),
        ("autoscaler.pools.h10.max=3", "unknown pool h10; did you mean h100?"),
        ("workload.with.rate_per_s=3", "workload is a list; write workload.0 for its first one"),
        ("workload.7.kind=chat", "there is no 7; the list has 1, from 0"),
        ("scheduler.que_max=3", "unknown key que_max; did you mean queue_max?"),
    ],
)
def test_a_change_that_cannot_be_says_what_would_be_right(load: Load, override: str, message: str) -> None:
    assert message in said(load, PLAIN, override)


def test_the_command_line_gives_pools_to_a_file_that_has_none_or_in_the_place_of_all(load: Load) -> None:
    text = "[[workload]]" + PLAIN.partition("[[workload]]")[2]
    found = load(text, "pools.a.law=8b-h100", "pools.b.law=8b-a100", "pools.b.count=3")["default"]
    assert {name: pool.count for name, pool in found.pools.items()} == {"a": 1, "b": 3}
    assert list(load(PLAIN, 'pools={a = {law = "8b-h100"}}', "pools.a.count=2")["default"].pools) == ["a"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("hsty", "--policy hsty: unknown policy hsty; did you mean hasty?"),
        ("scheduler.que_max=3", "unknown key que_max; did you mean queue_max?"),
        ("shceduler.queue_max=3", "unknown key shceduler; did you mean scheduler?"),
        ("policies.x.y=3", "--policy policies.x.y=3: a policy sets no policies; it may set seconds, drain_s"),
        ("scheduler.queue_max=3,policies.hasty.scheduler.order=edf", "a policy sets no policies"),
        ("name=other", "a policy sets no name"),
        ("question=Why?", "a policy sets no question"),
        ("pools.h10.count=3", "--policy pools.h10.count=3: unknown pool h10; did you mean h100?"),
        ("scheduler.queue_max=3,pools.other.law=8b-h100", "unknown pool other; there are: h100"),
        ("autoscaler.pools.h10.max=3", "unknown pool h10; did you mean h100?"),
    ],
)
def test_a_policy_that_there_is_not_names_the_nearest(load: Load, policy: str, message: str) -> None:
    assert message in said(load, policies=(policy,))


def test_a_scenario_that_there_is_not_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean shared-prefixes"):
        read("shared-prefix")
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.toml: No such file"):
        read("nowhere.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        read(str(tmp_path))
    for nowhere, why in ((LONG, "File name too long"), (f"{LONG}.toml", "File name too long"), (f"{__file__}/mine", "Not a directory")):
        with pytest.raises(ConfigError, match=f"cannot read .*: {why}"):
            read(nowhere)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read(str(tmp_path / "bytes.toml"))


@pytest.mark.parametrize("each", shipped(), ids=lambda each: each.name)
def test_every_shipped_scenario_loads_and_asks_a_question(each: Any) -> None:
    assert each.question.endswith("?")
    found = scenarios(read(each.name))
    assert list(found) == each.policies
    assert all(scenario.name == each.name for scenario in found.values())


def test_the_file_that_the_document_shows_loads(load: Load) -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    found = load(example)
    assert list(found) == ["default", "least_loaded", "larger"]
    assert found["larger"].pools["h100"].count == 6
    shown = set(re.findall(r"^(\w+) = ", example.split("[[workload]]")[0].split("[pools.h100]")[1], re.MULTILINE))
    assert shown == set(Pool.__struct_fields__)
