"""A recorded load on a scenario's fleet, or on the one that runs: what is made of them, and what is refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from legato.cli import build
from legato.commands.record import write
from legato.simulate.from_log import played
from legato.simulate.loading import Document
from legato.simulate.registered import scenario_of
from legato.simulate.scenario import Pool, Scenario
from legato.simulate.variants import scenarios
from services.worker.config import WorkerConfig
from services.worker.engines.choice import equipped
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from shared.contracts.fleet import Capacity, Hardware, ModelCard, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.core.errors import LegatoError
from shared.runtime.lifecycle import Options
from shared.sim.workloads.recorded import Row

runner = CliRunner()
LONG = "x" * 5_000
FLEET = {"name": "mine", "seconds": 900, "warm_up_s": 90, "pools": {"h100": {"law": "8b-h100", "count": 2}}, "workload": [{"kind": "chat"}]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [Row(step=f"s{number}", asked_ns=number * 10**10, model="m", prompt_tokens=5, output_tokens=5) for number in range(7)]
    write(tmp_path / "day.jsonl", rows)
    return tmp_path / "day.jsonl"


def scenario(log: Path, *changes: str, **values: Any) -> Scenario:
    [only] = scenarios(played(Document(origin="mine", values={**FLEET, **values}), log, changes)).values()
    return only


def test_the_log_takes_the_place_of_a_scenarios_load_for_as_long_as_it_is(log: Path) -> None:
    made = scenario(log)
    assert [(load.kind, load.settings) for load in made.workload] == [("recorded", {"path": str(log), "model": "model"})]
    assert (made.seconds, made.warm_up_s, made.pools["h100"].count) == (61, 0, 2)
    assert scenario(log, "workload.0.with.rate=10").seconds == 7
    assert scenario(log, "seconds=20", "pools.h100.count=4").pools["h100"].count == 4
    assert scenario(log, "seconds=20").seconds == 20


def test_steps_ask_for_the_one_model_there_is_or_for_what_was_recorded(log: Path) -> None:
    pool = {"law": "8b-h100"}
    assert scenario(log, "pools.h100.model=other").workload[0].settings["model"] == "other"
    two = {"a": pool | {"model": "m"}, "b": pool | {"model": "n"}}
    assert scenario(log, pools=two).workload[0].settings["model"] == ""
    assert scenario(log, "workload.0.with.model=n", pools=two).workload[0].settings["model"] == "n"
    with pytest.raises(LegatoError, match=r"the log asks for m, and no pool serves that.*pools\.NAME\.model"):
        scenario(log, pools={"a": pool | {"model": "x"}, "b": pool | {"model": "y"}})


def test_a_pool_without_a_law_asks_for_one(log: Path) -> None:
    with pytest.raises(LegatoError, match=r"the law of pool h100 is not known.*--set pools\.h100\.law="):
        scenario(log, pools={"h100": {"count": 2}})
    with pytest.raises(LegatoError, match=r"--set pools\.other\.count=4: unknown pool other; there are: h100"):
        scenario(log, "pools.other.count=4", pools={"h100": {"count": 2}})
    assert scenario(log, "pools.h100.law=8b-a100", pools={"h100": {"count": 2}}).pools["h100"].law == "8b-a100"


def worker(name: str, config: SimulatedConfig | None = None, **about: Any) -> WorkerRegistered:
    """As a worker with the simulated engine registers."""
    config = config or SimulatedConfig()
    engine = SimulatedEngine(config)
    card = ModelCard(name=ModelName(config.model), tokenizer="", vocab_size=1, context_tokens=1, block_tokens=config.block_tokens)
    registered = WorkerRegistered(
        worker=WorkerId(name),
        cell=CellId("local"),
        pool="default",
        epoch=1,
        state=WorkerState.READY,
        card=card,
        hardware=Hardware(kind=config.law, usd_per_hour=2.5),
        capacity=engine._capacity(),
        engine="simulated",
    )
    return msgspec.structs.replace(registered, **about)


def test_a_fleet_is_a_scenario_as_its_workers_have_registered(log: Path) -> None:
    config = SimulatedConfig(law="llama-3.1-8b@h100", slots=32, blocks=1_000, tokens_per_step=1_024)
    workers = [worker("a", config), worker("b", config), worker("c", config, state=WorkerState.DRAINING)]
    document = scenario_of(workers, {"scheduler": {"preempt_gap": 5}})
    [made] = scenarios(played(document, log, [])).values()
    assert made.pools == {
        "default": Pool(
            law="llama-3.1-8b@h100", count=2, model="sim-small", blocks=1_000, slots=32, tokens_per_step=1_024, usd_per_hour=2.5
        )
    }
    assert (made.block_tokens, made.services) == (16, {"scheduler.preempt_gap": 5})


def test_a_law_that_a_worker_does_not_keep_to_is_not_believed() -> None:
    """Its time is scaled; or its engine is a real one, of whose law nobody has said anything."""
    for each in (worker("a", SimulatedConfig(time_scale=2.0)), worker("a", hardware=Hardware(kind="H100-SXM"))):
        assert "law" not in scenario_of([each], {}).values["pools"]["default"]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([], "no worker of the fleet is ready"),
        ([worker("a"), worker("b", cell=CellId("far"))], r"more than one cell \(local; far\)"),
        ([worker("a"), worker("b", SimulatedConfig(block_tokens=32), pool="b")], "more than one block_tokens"),
        ([worker("a"), worker("b", SimulatedConfig(model="n"))], "more than one model .* in pool default"),
        ([worker("a"), worker("b", capacity=Capacity(blocks=1, slots=1))], "more than one capacity"),
        ([worker("a"), worker("b", hardware=Hardware(kind="cpu"))], "more than one hardware"),
    ],
)
def test_a_fleet_that_no_scenario_can_say_is_refused(workers: list[WorkerRegistered], said: str) -> None:
    with pytest.raises(LegatoError, match=said):
        scenario_of(workers, {})


def test_a_worker_with_the_simulated_engine_says_which_law_times_it() -> None:
    options = Options(service="worker", instance="w", config_path=None, overrides=["simulated.law=8b-a100"], env={})
    assert equipped(WorkerConfig(), options).hardware.kind == "8b-a100"
    assert equipped(WorkerConfig(hardware=Hardware(kind="mine")), options).hardware.kind == "mine"
    assert equipped(WorkerConfig(engine="sglang"), options).hardware.kind == "cpu"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("record", "{tmp}"), "is a directory"),
        (("record", "{tmp}/no/day.jsonl"), "there is no directory"),
        (("record", LONG), "cannot write it: File name too long"),
        (("record", "{tmp}/day", "--since", "yesterday"), "--since takes a number"),
        (("record", "{tmp}/day", "--since", "1h", "--until", "2h"), "--since 1h is not before --until 2h"),
        (("simulate", "shared-prefixes", "--from-log", "{tmp}/none"), "none: there is no such file; `legato record"),
        (("simulate", "shared-prefixes", "--from-log", "{tmp}"), "it is a directory; name a file that `legato record` wrote, or `fleet`"),
        (("simulate", "shared-prefixes", "--from-log", "/dev/null"), "null: it is a device or a pipe; name a file that `legato record`"),
        (("simulate", "shared-prefixes", "--from-log", LONG), "cannot read it: File name too long"),
        (("simulate", "shared-prefixes", "--from-log", __file__), r"test_from_log\.py, line 1: .*; got"),
        (("simulate", LONG), "cannot read x+: File name too long"),
        (("simulate", "shared-prefixes", "--html", LONG), "--html x+: cannot write it: File name too long"),
        (("simulate", "shared-prefixes", "--markdown", "{tmp}/" + LONG + "/it.md"), "cannot write it: File name too long"),
        (("simulate", "shared-prefixes", "--html", "{tmp}"), r"it is a directory; name a file, such as report\.html"),
        (("simulate", "mooncake-hour", "--jobs", "1", "--data", LONG), "is not there: get it from"),
    ],
)
def test_each_door_says_what_is_wrong(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    spoken = [word.format(tmp=tmp_path) for word in words]
    result = runner.invoke(build(spoken), spoken)
    assert isinstance(result.exception, LegatoError)
    with pytest.raises(LegatoError, match=said):
        raise result.exception
