"""The deployment files, as far as they can be judged without a container engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft7Validator, Draft202012Validator

from services.gateway.config import GatewayConfig
from shared.runtime.admin import AdminConfig
from shared.runtime.bus import BusConfig
from shared.runtime.config import load
from shared.runtime.telemetry import TelemetryConfig

ROOT = Path(__file__).parents[2]
SERVICES = {path.parent.name for path in ROOT.glob("services/*/__main__.py")}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_the_compose_file_follows_the_compose_specification(compose: dict[str, Any]) -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    validator = Draft7Validator if "draft-07" in schema["$schema"] else Draft202012Validator
    assert [error.message for error in validator(schema).iter_errors(compose)] == []


def test_every_service_of_the_fleet_is_in_the_compose_file(compose: dict[str, Any]) -> None:
    run = {service["command"][0] for service in compose["services"].values() if service.get("image", "").startswith("legato")}
    assert run == SERVICES


def test_every_setting_in_the_compose_file_is_one_that_the_services_know(compose: dict[str, Any]) -> None:
    kinds = {"bus": BusConfig, "telemetry": TelemetryConfig, "admin": AdminConfig, "gateway": GatewayConfig}
    for name, service in compose["services"].items():
        environment = {k: re.sub(r"\$\{[^:}]*:?-?([^}]*)\}", r"\1", str(v)) for k, v in service.get("environment", {}).items()}
        mine = {k: v for k, v in environment.items() if k.startswith("LEGATO_")}
        for key in mine:
            section = key.removeprefix("LEGATO_").split("_", 1)[0].lower()
            assert section in {*kinds, "postgres"}, f"{name}: {key}"
        for section, kind in kinds.items():
            load(kind, section, None, mine, [])


def test_whatever_the_images_copy_is_in_the_repository() -> None:
    for dockerfile in (ROOT / "deploy/Dockerfile", ROOT / "deploy/engine/Dockerfile"):
        for line in dockerfile.read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert (ROOT / source).exists(), f"{dockerfile.name}: {source}"
