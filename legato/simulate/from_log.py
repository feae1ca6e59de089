"""A scenario with a recorded load in place of its own: what if, on a day that was."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from legato.simulate.loading import Document, changed
from shared.runtime.config import ConfigError
from shared.sim.workloads.recorded import Log


def played(document: Document, log: Path, overrides: Sequence[str]) -> Document:
    """The scenario with all that `log` has as its one workload, for as long as that takes and without a warm-up, and then changed as on
    the command line. Its steps ask for the models that were recorded, or for the scenario's where it has but one. Raises ConfigError, and
    LegatoError for a file that is no log."""
    recorded = Log(log)
    values = copy.deepcopy(document.values)
    for key in ("seconds", "warm_up_s"):
        values.pop(key, None)
    values["workload"] = [{"kind": "recorded", "with": {"path": str(log.absolute())}}]
    whole = changed(Document(origin=document.origin, values=values), overrides)
    loads, pools = whole.values["workload"], _tables(whole.values.get("pools"))
    settings = loads[0].get("with") if isinstance(loads, list) and loads and isinstance(loads[0], dict) else None
    if isinstance(settings, dict):
        settings.setdefault("model", _model(document.origin, settings, recorded, {pool.get("model", "model") for pool in pools.values()}))
        rate = settings.get("rate", 1)
        span_s = recorded.seconds / rate if isinstance(rate, int | float) and rate > 0 else recorded.seconds
        whole.values.setdefault("seconds", span_s + 1)
    for name, pool in pools.items():
        if "law" not in pool:
            raise ConfigError(
                f"{document.origin}: the law of pool {name} is not known: its workers name none as their hardware's kind. Say it: "
                f"--set pools.{name}.law=llama-3.1-8b@h100 (docs/calibration.md has the names)"
            )
    return whole


def _model(origin: str, settings: Mapping[str, Any], recorded: Log, served: set[Any]) -> str:
    """What all steps ask for; empty: what was recorded."""
    if len(served) == 1 or settings.get("model"):
        return str(settings.get("model") or next(iter(served)))
    unknown = sorted({row.model for row in recorded.rows} - served)
    if unknown:
        raise ConfigError(
            f"{origin}: the log asks for {', '.join(unknown)}, and no pool serves that: name a pool's model so (--set pools.NAME.model=…), "
            "or send all to one model (--set workload.0.with.model=…)"
        )
    return ""


def _tables(pools: Any) -> dict[str, dict[str, Any]]:
    """Pools that are tables; what else there may be is refused with the whole."""
    return {name: pool for name, pool in pools.items() if isinstance(pool, dict)} if isinstance(pools, dict) else {}
