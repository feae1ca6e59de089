"""`legato run SERVICE`: one service alone."""

import importlib
from typing import Annotated

import typer

from legato.commands.options import Config, Set
from legato.settings import check
from shared.core.errors import LegatoError
from shared.runtime.lifecycle import Options
from shared.runtime.lifecycle import main as serve

SERVICES = ("gateway", "admission", "router", "scheduler", "kv_registry", "workflow", "autoscaler", "worker")

Service = Annotated[str, typer.Argument(help=f"One of {', '.join(SERVICES)}.")]
Instance = Annotated[str, typer.Option("--instance", help="Name of this process, unique in the fleet. Default: service and host name.")]


def run(service: Service, instance: Instance = "", config: Config = None, set_: Set = None) -> None:
    """Run one service alone.

    It runs in the foreground until SIGTERM or Ctrl-C, and then drains. The same as `python -m services.SERVICE`. Of a deciding service one
    process works and further ones stand by; gateways and workers run side by side.

    Addresses come from the configuration: `[bus] url`, `LEGATO_BUS_URL` or `--set bus.url=…`, and likewise `postgres.dsn`.

        legato run scheduler --set bus.url=nats://nats:4222
        LEGATO_BUS_URL=nats://nats:4222 legato run worker --instance worker-7 --set worker.engine=sglang
    """
    if service not in SERVICES:
        raise LegatoError(f"there is no service {service!r}; there are {', '.join(SERVICES)}")
    module = importlib.import_module(f"services.{service}.service")
    options = Options(service=service, instance=instance, config_path=config, overrides=set_ or [])
    check(options)  # before it waits for NATS
    raise typer.Exit(serve(options, module.run))
