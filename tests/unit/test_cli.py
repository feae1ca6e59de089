"""The command line, as far as it needs no fleet: what it understands, what it refuses, what it makes of things."""

import asyncio
import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

import legato
from legato.addresses import FILE, Running, born, bus_config, check_reachable, running_in
from legato.cli import COMMANDS, build, leaves
from legato.commands.options import connected, connected_client
from legato.commands.replay import own_setting
from legato.commands.submit import _choose
from legato.commands.up import _examples, _without_password, program
from legato.drain import waits_for
from legato.entries import find_entry
from legato.fleet import Fleet, readable
from legato.history import _event, _submitted
from legato.machines import DECIDERS, machine_of
from legato.plan import SERVICES, Wanted, launch, plan
from legato.served import Served
from legato.summary import summarised
from shared.contracts.fleet import Capacity
from shared.contracts.ids import MessageId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.steps import StepClosed, StepSettled
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.runtime.config import SECTIONS
from shared.runtime.cursor import Record
from shared.runtime.nats_client import write_headers

runner = CliRunner()


def called(*words: str) -> Any:
    return runner.invoke(build(words), words)


# --- the program -------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_the_first_steps() -> None:
    text = called("--help").output
    assert all(name in text for name in COMMANDS)
    assert "legato up" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_teaches_by_example(command: str) -> None:
    result = called(command, "--help")
    assert result.exit_code == 0
    assert result.output.count(f"legato {command}") >= 2, "usage and an example"


def test_version_is_that_of_the_package() -> None:
    assert called("--version").output == f"legato {legato.__version__}\n"


def test_an_unknown_option_is_wrong_usage() -> None:
    result = called("status", "--josn")
    assert result.exit_code == 2
    assert "--json" in result.output


def test_an_expected_error_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from legato import cli

    monkeypatch.setattr(sys, "argv", ["legato", "replay", "gateway"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err.strip() == "legato: gateway cannot be replayed: it decides nothing"


def test_errors_are_found_however_deep_task_groups_wrapped_them() -> None:
    deep = ExceptionGroup("", [ExceptionGroup("", [LegatoError("a")]), LegatoError("b")])
    assert [str(error) for error in leaves(deep)] == ["a", "b"]


# --- what runs ---------------------------------------------------------------------------------------------------------------


def test_by_default_every_service_runs_once_and_the_door_opens_last() -> None:
    names = [each.name for each in plan(Wanted())]
    assert sorted(names) == sorted(f"{service}-0" for service in SERVICES)
    assert names[-1] == "gateway-0"


def test_workers_replicas_and_a_choice_of_services() -> None:
    wanted = Wanted(workers=2, only=["scheduler", "worker", "gateway"], replicas=["scheduler=2", "gateway=2"], port=9000)
    launches = plan(wanted)
    assert [each.name for each in launches] == ["scheduler-0", "scheduler-1", "worker-0", "worker-1", "gateway-0", "gateway-1"]
    assert [each.settings[0] for each in launches if each.service == "gateway"] == ["gateway.port=9000", "gateway.port=9001"]
    assert plan(Wanted(engine="none", only=["worker"])) == []


def test_a_process_is_started_as_the_documents_say() -> None:
    each = launch(Wanted(engine="sglang", config="/etc/legato.toml", settings=["scheduler.queue_max=9"]), "worker", 3)
    expected = ["-m", "services.worker", "--instance", "worker-3", "--config", "/etc/legato.toml"]
    assert each.argv[1:] == [*expected, "--set", "worker.engine=sglang", "--set", "scheduler.queue_max=9"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(engine="vllm"), "simulated, sglang"),
        (Wanted(only=["schedular"]), "no service 'schedular'"),
        (Wanted(replicas=["scheduler"]), "scheduler=2"),
        (Wanted(replicas=["worker=2"]), "--workers"),
        (Wanted(settings=["schedular.x=1"]), "unknown section schedular; did you mean scheduler"),
        (Wanted(settings=["queue_max=1"]), "section.field=value"),
    ],
)
def test_what_cannot_run_is_refused_by_name(wanted: Wanted, words: str) -> None:
    with pytest.raises(LegatoError, match=words):
        plan(wanted)


def test_the_end_of_a_process_is_told_with_its_complaints_only() -> None:
    good = json.dumps({"level": "info", "message": "driving the partition"})
    bad = json.dumps({"level": "error", "message": "stopped: no such key", "time": "…"})
    told = readable(f"scheduler-0 ended with code 1; its log ends:\n{good}\n{bad}\nplain")
    assert told == "scheduler-0 ended with code 1\n  error: stopped: no such key\n  plain"
    assert readable(f"scheduler-0 was killed; its log ends:\n{good}") == "scheduler-0 was killed"
    assert readable("in 0.2 s") == "in 0.2 s"


def test_a_drain_names_what_is_left_and_counts_the_steps_that_still_run() -> None:
    steps = {"worker-0": 3, "worker-1": 1, "worker-2": 0, "worker-3": 7}
    told = waits_for(["worker-0", "worker-1", "worker-2", "gateway-0"], steps)
    assert told == "waiting for worker-0 (3 steps), worker-1 (1 step), worker-2, gateway-0"
    assert waits_for([], steps) == ""


# --- where the fleet is ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("LEGATO_BUS_URL", raising=False)
    return monkeypatch


def test_a_flag_goes_before_the_environment_before_a_running_fleet_before_the_default(tmp_path: Path, clean: pytest.MonkeyPatch) -> None:
    assert bus_config("", tmp_path).url == "nats://127.0.0.1:4222"
    Running(pid=os.getpid(), born=born(os.getpid()) or 0, nats="nats://up:1").save(tmp_path)
    assert bus_config("", tmp_path).url == "nats://up:1"
    clean.setenv("LEGATO_BUS_URL", "nats://env:2")
    assert bus_config("", tmp_path).url == "nats://env:2"
    assert bus_config("nats://flag:3", tmp_path).url == "nats://flag:3"


def test_what_a_dead_fleet_left_behind_is_not_believed(tmp_path: Path) -> None:
    Running(pid=2**22 + 1, nats="nats://gone:1").save(tmp_path)  # beyond Linux's highest process id
    assert running_in(tmp_path) is None
    Running(pid=os.getpid(), born=1.0, nats="nats://gone:1").save(tmp_path)  # its number belongs to somebody else now
    assert running_in(tmp_path) is None


def test_the_file_with_the_password_is_its_owners_alone(tmp_path: Path) -> None:
    Running(pid=1, nats="n", postgres="postgresql://legato:secret@h/d").save(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


async def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(LegatoError, match=r"nobody listens at nats://127\.0\.0\.1:1; start"):
        await check_reachable("nats://127.0.0.1:1", "; start one")


async def silent_listener() -> asyncio.Server:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    return await asyncio.start_server(accept, "127.0.0.1", 0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "nats://127.0.0.1:1,https://nats"])
async def test_an_address_that_is_not_of_nats_is_refused_at_once(url: str) -> None:
    with pytest.raises(LegatoError, match=r"NATS is not reached by 'https?': write nats://HOST:PORT"):
        await check_reachable(url)


def test_examples_call_the_program_as_it_can_be_called(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called = tmp_path / ".venv" / "bin" / "legato"
    called.parent.mkdir(parents=True)
    called.touch(0o755)
    clean.chdir(tmp_path)
    clean.setenv("PATH", "/usr/bin")
    clean.setattr(sys, "argv", [".venv/bin/legato", "up"])
    assert program() == ".venv/bin/legato"
    clean.chdir(called.parent)
    clean.setattr(sys, "argv", ["./legato", "up"])
    assert program() == "./legato"
    (tmp_path / "elsewhere").mkdir()
    clean.chdir(tmp_path / "elsewhere")
    clean.setattr(sys, "argv", [str(called), "up"])
    assert program() == str(called)
    clean.setenv("PATH", f"/usr/bin:{called.parent}")
    assert program() == "legato"


async def test_whoever_is_no_nats_is_told_apart_and_waited_for_aloud(
    clean: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean.setattr("shared.runtime.bus.CONNECT_TIMEOUT_S", 0.3)
    clean.setattr("legato.console.SLOW_S", 0.0)
    async with await silent_listener() as server:
        where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for connect in (connected(f"nats://ada:secret@{where}", tmp_path), connected_client(f"nats://ada:secret@{where}", tmp_path, "")):
            with pytest.raises(LegatoError, match=rf"listens at nats://{where} does not answer as NATS does: is it the right port\?$"):
                async with connect:
                    pass
            said = capsys.readouterr().err
            assert f"trying to reach NATS at nats://{where}\n" in said
            assert f"listens at nats://{where}; waiting" in said
            assert "secret" not in said


async def test_a_fleet_on_a_nats_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    async with Fleet(tmp_path, Wanted(only=["router"]), print, "nats://ada:secret@127.0.0.1:1") as fleet:
        with pytest.raises(LegatoError, match=r"nobody listens at nats://127\.0\.0\.1:1$"):
            await fleet.start()


def test_passwords_are_not_shown() -> None:
    assert _without_password("postgresql://legato:secret@127.0.0.1:5/legato?x=y") == "postgresql://legato@127.0.0.1:5/legato?x=y"


# --- what is asked for -------------------------------------------------------------------------------------------------------


def served(name: str, workers: list[str], chat: bool = True) -> Served:
    ids = [WorkerId(worker) for worker in workers]
    return Served(name=ModelName(name), context_tokens=1, chat=chat, engines=["e"], workers=ids, not_ready=[], slots=1, heard_s=0)


def test_without_a_model_the_first_one_with_a_ready_worker_is_asked() -> None:
    chosen = _choose([served("a", []), served("b", ["w"]), served("c", ["w"])], "")
    assert chosen is not None
    assert chosen.name == "b"
    assert _choose([served("a", ["w"])], "an-alias") is None
    with pytest.raises(LegatoError, match="legato up"):
        _choose([], "")


def test_the_examples_fit_the_model() -> None:
    chat, plain = (_examples("legato", "nats://n", "http://h", served("m", ["w"], chat=chat)) for chat in (True, False))
    assert any("export NATS_URL=nats://n " in line for line in chat)
    assert any("/v1/chat/completions" in line for line in chat)
    assert any("/v1/completions" in line and '"prompt"' in line for line in plain)
    body = next(line for line in chat if line.startswith("curl")).split("-d '")[1].rstrip("'")
    assert json.loads(body)["messages"][0]["content"] == "Hello"


# --- replay ------------------------------------------------------------------------------------------------------------------


def test_what_has_no_journal_says_why() -> None:
    with pytest.raises(LegatoError, match="Postgres is its record"):
        machine_of("workflow")
    with pytest.raises(LegatoError, match="admission, router, scheduler"):
        machine_of("planner")


@pytest.mark.parametrize(
    ("setting", "own"),
    [
        ("scheduler.match_wait_ms=0", "match_wait_ms=0"),
        ("match_wait_ms=0", "match_wait_ms=0"),
        ("match_wait_ms=0.5", "match_wait_ms=0.5"),
        ("no.such=admission.x", "no.such=admission.x"),
    ],
)
def test_a_setting_is_given_to_a_replay_as_to_any_command(setting: str, own: str) -> None:
    assert own_setting(machine_of("scheduler"), setting) == own


def test_a_setting_of_another_section_is_refused_by_name() -> None:
    with pytest.raises(LegatoError, match=r"scheduler decides by \[scheduler\] alone"):
        own_setting(machine_of("scheduler"), "router.x=1")


@pytest.mark.parametrize("service", DECIDERS)
def test_no_field_has_the_name_of_a_section_so_that_both_ways_to_write_a_setting_mean_the_same(service: str) -> None:
    assert not set(SECTIONS) & set(machine_of(service).config.__struct_fields__)


async def test_an_entry_is_found_by_number_and_by_message_id() -> None:
    nobody: Any = SimpleNamespace()
    assert await find_entry(nobody, "scheduler", "local", "17") == (17, 0)
    assert await find_entry(nobody, "scheduler", "local", "scheduler.local.3.4711.0") == (4711, 3)
    with pytest.raises(LegatoError, match="legato replay router --at router"):
        await find_entry(nobody, "scheduler", "local", "router.all.3.4711.0")
    with pytest.raises(LegatoError, match="--partition north"):
        await find_entry(nobody, "scheduler", "local", "scheduler.north.3.4711.0")


def test_large_collections_are_cut_and_say_what_is_missing() -> None:
    cut = summarised({str(number): [number] * 9 for number in range(100)})
    assert cut["…"] == "94 more, 100 in all"
    assert cut["5"][-1] == "… 3 more, 9 in all"
    assert "6" not in cut
    assert summarised("x" * 300) == "x" * 200 + "… (300 characters)"


def test_a_struct_keeps_all_its_fields() -> None:
    class Wide(msgspec.Struct):
        a: int = 1
        b: int = 1
        c: int = 1
        d: int = 1
        e: int = 1
        f: int = 1
        g: dict[int, Capacity] = {}

    wide = summarised(Wide(g={1: Capacity(blocks=2, slots=3)}))
    assert list(wide) == list("abcdefg")
    assert wide["g"] == {"1": {"blocks": 2, "slots": 3}}


# --- timeline ----------------------------------------------------------------------------------------------------------------


def record(data: bytes, time: str = "2026-11-29T20:17:05.5Z") -> Record:
    return Record("LEGATO_STEPS", 1, "legato.step.s.x", data, write_headers({"Nats-Time-Stamp": time}))


def test_times_are_read_to_the_nanosecond() -> None:
    assert record(b"", "1970-01-01T00:00:01.000000007Z").stored_ns == 1_000_000_007
    assert record(b"", "1970-01-01T00:00:01Z").stored_ns == 1_000_000_000
    assert record(b"", "1970-01-01T02:00:01.5+02:00").stored_ns == 1_500_000_000


def test_an_event_is_told_with_its_author_and_reason() -> None:
    problem = Problem(reason=Reason.NO_CAPACITY, message="no worker serves m")
    closed = StepClosed(id=MessageId("router.main.3.4.0"), step=StepId("s"), status=Status.FAILED, problem=problem)
    told = _event(record(ENCODER.encode(closed)))
    assert (told.what, told.who, told.why, told.id) == ("closed", "router", "no worker serves m (no_capacity)", "router.main.3.4.0")
    settled = StepSettled(id=MessageId("s.settled"), step=StepId("s"), status=Status.FAILED)
    assert _event(record(ENCODER.encode(settled))).who == "workflow"


def test_a_submission_is_told_by_what_it_carries() -> None:
    bodies = ({"messages": [{}, {}]}, {"history": "5f1c"}, {"prompt": "x"})
    told = [_submitted(record(ENCODER.encode({"model": "m", **body}))).why for body in bodies]
    assert told == ["2 message(s) for m", "a stored conversation for m", "a prompt for m"]


@pytest.mark.parametrize("data", [b"\xff", b"[1]", b'{"type":"step.unheard"}', b'{"type":"step.settled"}', b""])
def test_what_is_not_in_our_words_is_shown_all_the_same(data: bytes) -> None:
    assert _event(record(data)).who == "?"
    assert _submitted(record(data)).what == "submitted"
    assert msgspec.json.encode(_event(record(data)))


def _commands() -> dict[tuple[str, ...], Any]:
    """All of them, also those of groups, by the words that name them."""
    found: dict[tuple[str, ...], Any] = {}
    for name in COMMANDS:
        command = getattr(importlib.import_module(f"legato.commands.{name}"), name)
        if isinstance(command, typer.Typer):
            found |= {(name, each.name or each.callback.__name__): each.callback for each in command.registered_commands if each.callback}
        else:
            found[name,] = command
    return found


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_each_example_of_a_help_text_has_a_line_of_its_own(words: tuple[str, ...]) -> None:
    text = inspect.cleandoc(_commands()[words].__doc__)
    examples = [line.strip() for line in text.splitlines() if line.startswith("    legato ")]
    shown = CliRunner().invoke(build(words), [*words, "--help"], env={"COLUMNS": "240", "TERM": "dumb"}).output
    lines = [line.strip() for line in shown.splitlines()]
    assert [example for example in examples if example not in lines] == []
