"""docs/openapi.json: current, complete and sound."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from services.gateway.config import GatewayConfig
from services.gateway.handlers import Handlers
from services.gateway.models import Models
from services.gateway.openapi import openapi
from services.gateway.service import routes
from shared.contracts.document import pretty
from shared.runtime.telemetry import Telemetry, TelemetryConfig

DOCUMENT = openapi()
FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(schema)


def test_the_file_is_current() -> None:
    assert FILE.read_bytes() == pretty(DOCUMENT), "python docs/generate.py"


def test_every_reference_has_its_target() -> None:
    for ref in re.findall(r'"\$ref":"#/([^"]*)"', json.dumps(DOCUMENT, separators=(",", ":"))):
        found: Any = DOCUMENT
        for part in ref.split("/"):
            found = found[part]


def test_it_has_every_path_that_the_gateway_serves() -> None:
    nowhere: Any = None  # no request is made
    config = GatewayConfig()
    handlers = Handlers(nowhere, config, Models(nowhere, 1, {}), Telemetry("gateway", "test", TelemetryConfig()))
    served = {(route.method, re.sub(r":[^}]*", "", route.path)) for route in routes(handlers) if route.method != "*"}
    assert served == {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}


@pytest.mark.parametrize(
    ("name", "body", "sound"),
    [
        ("ChatBody", {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5, "n": 1}, True),
        ("ChatBody", {"model": "m", "messages": [], "nvext": {"agent_hints": {"priority": 5}}}, True),
        ("ChatBody", {"model": "m", "messages": [], "nvext": {"agent_hints": {"priority": 101}}}, False),
        ("ChatBody", {"model": "m", "messages": [], "nvext": {"cache_salt": "x"}}, False),
        ("ChatBody", {"model": "m", "messages": [], "n": 0}, False),
        ("ChatBody", {"model": "m", "messages": [], "temprature": 1}, False),
        ("CompletionBody", {"model": "m", "prompt": "Once", "echo": False}, True),
        ("CompletionBody", {"model": "m"}, False),
        ("Closing", {"success": True, "score": 0.5, "why": "done"}, True),
        ("Closing", {"score": "high"}, False),
    ],
)
def test_a_body_fits_the_schema_where_the_gateway_would_take_it(name: str, body: dict[str, Any], sound: bool) -> None:
    assert validator(name).is_valid(body) == sound
