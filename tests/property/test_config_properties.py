"""Configuration from anywhere either fits or is refused by a ConfigError that names the place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.admission.config import AdmissionConfig
from services.autoscaler.config import AutoscalerConfig
from services.gateway.config import GatewayConfig
from services.kv_registry.config import KvRegistryConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from services.worker.engines.sglang_config import SglangConfig
from services.worker.engines.simulated import SimulatedConfig
from services.workflow.config import WorkflowConfig
from shared.core.catalogue import ModelsConfig
from shared.runtime.admin import AdminConfig
from shared.runtime.bus import BusConfig
from shared.runtime.config import PREFIX, SECTIONS, ConfigError, check_setting, load
from shared.runtime.db import DatabaseConfig
from shared.runtime.telemetry import TelemetryConfig

KINDS: dict[str, type[msgspec.Struct]] = {
    "admission": AdmissionConfig,
    "autoscaler": AutoscalerConfig,
    "gateway": GatewayConfig,
    "kv_registry": KvRegistryConfig,
    "router": RouterConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "workflow": WorkflowConfig,
    "sglang": SglangConfig,
    "simulated": SimulatedConfig,
    "models": ModelsConfig,
    "admin": AdminConfig,
    "bus": BusConfig,
    "postgres": DatabaseConfig,
    "telemetry": TelemetryConfig,
}
FIELDS = [(section, field) for section, kind in KINDS.items() for field in kind.__struct_fields__]
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=6), inner, max_size=3),
    max_leaves=5,
)


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value).replace("\x7f", "\\u007f")


TEXTS = (
    st.text(max_size=40)
    | VALUES.map(toml)
    | st.sampled_from(
        [
            "[" * 10_000,
            "[" * 900 + "]" * 900,
            '{"a":' * 300 + "1" + "}" * 300,
            '{"a":' * 10_000,
            "9" * 5_000,
            "1e999",
            "nan",
            "\ud800",
            "1979-05-27",
            "\0",
        ]
    )
)


def refusal(read: Callable[[], object]) -> str | None:
    """What a ConfigError says; None if it fits."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return None


def loaded(section: str, place: str, **where: Any) -> None:
    """Load a section; what is refused, names where it came from."""
    refused = refusal(lambda: load(KINDS[section], section, **where))
    assert refused is None or place in refused


@given(st.sampled_from(FIELDS), TEXTS)
def test_any_environment_variable(where: tuple[str, str], text: str) -> None:
    section, field = where
    variable = f"{PREFIX}{section.upper()}_{field.upper()}"
    loaded(section, variable, env={variable: text, "LEGATO_POSTGRES_DSN": "postgresql://x"} if section == "postgres" else {variable: text})


@given(st.sampled_from(FIELDS), st.sampled_from(["", ".x", ".a.keys", ".0", "."]), TEXTS)
@example(("admission", "tenants"), ".", "{}")
def test_any_override(where: tuple[str, str], inner: str, text: str) -> None:
    section, field = where
    setting = f"{field}{inner}={text}"
    loaded(section, "--set", overrides=["dsn=postgresql://x", setting] if section == "postgres" else [setting])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "legato.toml"


@QUICK
@given(st.sampled_from(FIELDS), TEXTS)
def test_any_value_in_a_file(file: Path, where: tuple[str, str], text: str) -> None:
    section, field = where
    file.write_text(f"[{section}]\n{field} = {text}\n", errors="surrogatepass")
    loaded(section, str(file), path=file, env={"LEGATO_POSTGRES_DSN": "postgresql://x"})


@QUICK
@given(
    st.sampled_from(sorted(KINDS)),
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | VALUES.map(lambda value: f"x = {toml(value)}".encode()),
)
@example("bus", b"[" * 100_000)
@example("bus", b"bus = 1")
@example("bus", b"[[bus]]")
@example("bus", b"[bus]\nurl = {a = 1}\n[bus.url]")
def test_any_file(file: Path, section: str, content: bytes) -> None:
    file.write_bytes(content)
    loaded(section, str(file), path=file, env={"LEGATO_POSTGRES_DSN": "postgresql://x"})


@pytest.mark.parametrize("path", ["/nonexistent", "/", "/etc/passwd/x", "\0", "x" * 5_000])
def test_any_path(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(BusConfig, "bus", Path(path))


@given(st.text(max_size=60))
def test_any_setting_is_one_or_is_refused(text: str) -> None:
    refused = refusal(lambda: check_setting(text))
    assert repr(text)[1:-1] in refused or text in refused if refused else text.partition(".")[0] in SECTIONS
