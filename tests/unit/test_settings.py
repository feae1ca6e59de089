"""Configuration is checked before anything is waited for."""

import re
import sys
from pathlib import Path

import pytest

from legato import cli
from legato.plan import SERVICES
from legato.settings import SECTIONS_OF, check
from shared.core.errors import LegatoError
from shared.runtime.lifecycle import Options

ROOT = Path(__file__).parents[2]
NEEDED = {"LEGATO_POSTGRES_DSN": "postgresql://h/d"}  # all that has no default
READ = re.compile(r"""section\((\w+), "(\w+)"\)""")


@pytest.mark.parametrize("service", SERVICES)
def test_the_table_has_the_sections_that_the_service_reads(service: str) -> None:
    sources = [path.read_text() for path in (ROOT / "services" / service).rglob("*.py")]
    read = {section: struct for source in sources for struct, section in READ.findall(source)}
    assert read == {section: place.rpartition(".")[2] for section, place in SECTIONS_OF[service].items()}


@pytest.mark.parametrize("service", SERVICES)
def test_the_defaults_can_be(service: str) -> None:
    check(Options(service=service, env=NEEDED))


@pytest.mark.parametrize(("service", "section"), [(service, section) for service in SERVICES for section in (*SECTIONS_OF[service], "bus")])
def test_what_cannot_be_is_refused_wherever_it_is_written(service: str, section: str, tmp_path: Path) -> None:
    file = tmp_path / "legato.toml"
    file.write_text(f"[{section}]\nwat = 1\n")
    variable = f"LEGATO_{section.upper()}_WAT"
    for options in (
        Options(service=service, env=NEEDED, overrides=[f"{section}.wat=1"]),
        Options(service=service, env={**NEEDED, variable: "1"}),
        Options(service=service, env=NEEDED, config_path=file),
    ):
        with pytest.raises(LegatoError, match=r"(?i)wat"):
            check(options)


@pytest.mark.parametrize("setting", ["scheduler.queue_max=many", "scheduler.queue_maximum=1", "schedular.x=1", "bus.replicas=x", "x"])
def test_a_service_with_a_wrong_setting_does_not_wait_for_nats(
    setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("legato.commands.run.serve", lambda *_: pytest.fail("it was started"))
    monkeypatch.setattr(sys, "argv", ["legato", "run", "scheduler", "--set", "bus.url=nats://127.0.0.1:1", "--set", setting])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert setting.removeprefix("scheduler.").removeprefix("bus.") in line
