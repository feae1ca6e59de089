from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from shared.contracts.fleet import WorkerState
from shared.runtime.config import ConfigError, load


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    tries_max: int = 3
    wait_s: float = 0.5


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workers: int = 1


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    queue_max: Annotated[int, msgspec.Meta(ge=1)] = 100
    cell: str = "here"
    version: str | None = None
    lease_s: float = 5.0
    preempt: bool = True
    order: Literal["priority", "arrival"] = "priority"
    state: WorkerState = WorkerState.READY
    backoff: Backoff = Backoff()
    fallback: Backoff | None = None
    pools: list[Pool] = []
    aliases: dict[str, str] = {}
    limits: dict[str, Backoff] = {}


class DatabaseSection(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "legato.toml"


def scheduler(path: Path | None = None, env: dict[str, str] | None = None, overrides: list[str] | None = None) -> SchedulerConfig:
    return load(SchedulerConfig, "scheduler", path, env, overrides or [])


def test_without_any_source_there_are_the_defaults(path: Path) -> None:
    assert scheduler() == SchedulerConfig()
    path.write_text("[gateway]\nport = 80\n")
    assert scheduler(path) == SchedulerConfig()


def test_the_file_fills_nested_structs_lists_and_tables(path: Path) -> None:
    path.write_text("""
        [scheduler]
        queue_max = 7
        lease_s = 3
        order = "arrival"
        state = "draining"
        backoff = { tries_max = 9 }
        aliases = { small = "smollm2" }
        [[scheduler.pools]]
        name = "a"
        [scheduler.limits.gold]
        wait_s = 0.1
        """)
    assert scheduler(path) == SchedulerConfig(
        queue_max=7,
        lease_s=3.0,
        order="arrival",
        state=WorkerState.DRAINING,
        backoff=Backoff(tries_max=9),
        aliases={"small": "smollm2"},
        pools=[Pool(name="a")],
        limits={"gold": Backoff(wait_s=0.1)},
    )


def test_the_environment_goes_over_the_file_and_the_command_line_over_both(path: Path) -> None:
    path.write_text('[scheduler]\nqueue_max = 1\ncell = "file"\nversion = "file"\n')
    config = scheduler(path, {"LEGATO_SCHEDULER_QUEUE_MAX": "2", "LEGATO_SCHEDULER_CELL": "env"}, ["queue_max=3"])
    assert (config.queue_max, config.cell, config.version) == (3, "env", "file")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("queue_max", "10", 10),
        ("queue_max", "1_000", 1000),
        ("lease_s", "2.5", 2.5),
        ("lease_s", "2", 2.0),
        ("preempt", "false", False),
        ("cell", "7", "7"),
        ("version", "7", "7"),
        ("order", "arrival", "arrival"),
        ("state", "down", WorkerState.DOWN),
        ("backoff", '{"tries_max": 1}', Backoff(tries_max=1)),
        ("backoff", "{tries_max = 1}", Backoff(tries_max=1)),
        ("fallback", '{"tries_max": 1}', Backoff(tries_max=1)),
        ("pools", '[{"name": "a", "workers": 2}]', [Pool(name="a", workers=2)]),
        ("aliases", "{small = 'smollm2'}", {"small": "smollm2"}),
    ],
)
def test_values_from_the_environment_and_the_command_line_have_the_declared_type(key: str, text: str, value: object) -> None:
    assert getattr(scheduler(env={f"LEGATO_SCHEDULER_{key.upper()}": text}), key) == value
    assert getattr(scheduler(overrides=[f"{key}={text}"]), key) == value


def test_an_override_reaches_into_structs_and_tables(path: Path) -> None:
    path.write_text('[scheduler]\nbackoff = { tries_max = 9 }\naliases = { a = "1" }\n')
    config = scheduler(path, overrides=["backoff.wait_s=2", "aliases.b=2", "limits.gold.tries_max=4", "fallback.wait_s=1"])
    assert config.backoff == Backoff(tries_max=9, wait_s=2.0)
    assert config.aliases == {"a": "1", "b": "2"}
    assert config.limits == {"gold": Backoff(tries_max=4)}
    assert config.fallback == Backoff(wait_s=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scheduler]\nqueue_mx = 1", r"legato\.toml \[scheduler\]: unknown key queue_mx; did you mean queue_max\?"),
        ("[scheduler]\nbackoff = { tries = 1 }", r"legato\.toml \[scheduler\] backoff: unknown key tries; did you mean tries_max\?"),
        ("[scheduler]\nfallback = { zzz = 1 }", r"\[scheduler\] fallback: unknown key zzz; there are: tries_max, wait_s"),
        ("[scheduler]\npools = [{ nme = 'a' }]", r"\[scheduler\] pools\[0\]: unknown key nme; did you mean name\?"),
        ("[scheduler.limits.gold]\nwait = 1", r"\[scheduler\] limits\.gold: unknown key wait; did you mean wait_s\?"),
        ("[shceduler]\nqueue_max = 1", r"legato\.toml: unknown section \[shceduler\]; did you mean scheduler\?"),
        ("[scheduler]\nqueue_max = 'many'", r"legato\.toml \[scheduler\] queue_max: expected int, got str"),
        ("[scheduler]\nqueue_max = 0", r"\[scheduler\] queue_max: expected int >= 1"),
        ("[scheduler]\nbackoff = { tries_max = 'x' }", r"\[scheduler\] backoff\.tries_max: expected int, got str"),
        ("[scheduler]\npools = [{ workers = 1 }]", r"\[scheduler\] pools\[0\]: missing key name"),
        ("[scheduler]\norder = 'fifo'", r"\[scheduler\] order: invalid enum value 'fifo'; there are: arrival, priority"),
        ("scheduler = 1", r"scheduler should be a section"),
        ("[scheduler", r"legato\.toml is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        scheduler(path)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("QUEUE_MX", "1", "unknown variable LEGATO_SCHEDULER_QUEUE_MX; did you mean LEGATO_SCHEDULER_QUEUE_MAX?"),
        ("QUEUE_MAX", "many", "environment: LEGATO_SCHEDULER_QUEUE_MAX: expected int, got str, 'many'"),
        ("QUEUE_MAX", "0", "LEGATO_SCHEDULER_QUEUE_MAX queue_max: expected int >= 1"),
        ("BACKOFF", '{"tries": 1}', "LEGATO_SCHEDULER_BACKOFF backoff: unknown key tries; did you mean tries_max?"),
        ("POOLS", "a", "LEGATO_SCHEDULER_POOLS: expected array, got str, 'a'"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheduler(env={f"LEGATO_SCHEDULER_{variable}": text})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("queue_max", "--set scheduler.queue_max: should be key=value"),
        ("queue_mx=1", "--set scheduler.queue_mx=1: unknown key queue_mx; did you mean queue_max?"),
        ("backoff.tries=1", "unknown key tries; did you mean tries_max?"),
        ("queue_max=many", "--set scheduler.queue_max=many: expected int, got str, 'many'"),
        ("queue_max=0", "--set scheduler.queue_max=0: expected int >= 1"),
        ("backoff={tries_max='x'}", "--set scheduler.backoff={tries_max='x'} backoff.tries_max: expected int, got str"),
        ("order=fifo", "--set scheduler.order=fifo: 'fifo' is not allowed; there are: arrival, priority"),
        ("state=foo", "--set scheduler.state=foo: 'foo' is not allowed; there are: down, draining, loading, ready"),
        ("queue_max.deep=1", "queue_max: expected int"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheduler(overrides=[override])
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*legato\.toml: No such file"):
        scheduler(path)


def test_a_required_key_that_is_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match=r"section \[postgres\]: missing key dsn"):
        load(DatabaseSection, "postgres")


def test_variables_of_other_sections_are_theirs() -> None:
    class Kv(msgspec.Struct, frozen=True):
        size: int = 1

    env = {"LEGATO_KV_REGISTRY_SHARDS": "4", "LEGATO_KV_SIZE": "2", "LEGATO_HOME": "/", "PATH": "/bin"}
    assert load(Kv, "kv", None, env) == Kv(size=2)
