"""What the services of a scenario are told: their defaults, then what the scenario says for all policies, then what the policy says."""

from typing import Any

import msgspec

from legato.simulate.scenario import Scenario
from services.admission.decide import MACHINE as ADMISSION
from services.autoscaler.decide import MACHINE as AUTOSCALER
from services.kv_registry.decide import MACHINE as REGISTRY
from services.router.decide import MACHINE as ROUTER
from services.scheduler.decide import MACHINE as SCHEDULER
from shared.core.errors import LegatoError
from shared.core.machine import Machine

MACHINES: dict[str, Machine[Any, Any]] = {machine.name: machine for machine in (ADMISSION, ROUTER, SCHEDULER, REGISTRY, AUTOSCALER)}
BEATS_OF_LEASE = 4  # as SchedulerConfig has it


def configs(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Each machine's configuration, by its service. Raises LegatoError for a policy or a setting that there is not."""
    if policy and policy not in scenario.policies:
        raise LegatoError(f"there is no policy {policy!r} in {scenario.name}; there are: {', '.join(sorted(scenario.policies)) or 'none'}")
    lease_ms = max(3_000, BEATS_OF_LEASE * scenario.beat_ms)
    pools = {name: pool.autoscaler for name, pool in scenario.pools.items() if pool.autoscaler}
    trees: dict[str, dict[str, Any]] = {name: {} for name in MACHINES}
    trees["scheduler"]["lease_ms"] = lease_ms
    if pools:
        trees["autoscaler"]["pools"] = pools
    for path, value in {**scenario.services, **scenario.policies.get(policy, {})}.items():
        _set(trees, path, value)
    return {name: _config(name, tree) for name, tree in trees.items()}


def _set(trees: dict[str, dict[str, Any]], path: str, value: Any) -> None:
    service, *names = path.split(".")
    if service not in trees or not names:
        raise LegatoError(f"{path!r} is no setting of a service that is simulated; write <service>.<setting>, of {', '.join(trees)}")
    tree = trees[service]
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    tree[names[-1]] = value


def _config(name: str, tree: dict[str, Any]) -> Any:
    kind = MACHINES[name].config
    known = {field.name for field in msgspec.structs.fields(kind)}
    for setting in tree:
        if setting not in known:
            raise LegatoError(f"there is no setting {name}.{setting}; there are: {', '.join(sorted(known))}")
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        raise LegatoError(f"[{name}] of the scenario cannot be: {error}") from error
