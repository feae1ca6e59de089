"""What the services of a scenario are told: their defaults, then what the scenario says for all policies, then what the policy says."""

import json
from typing import Any

from legato.machines import DECIDERS, machine_of
from legato.simulate.loading import refuse
from legato.simulate.scenario import Scenario
from shared.runtime.config import ConfigError, load

LEASE_MS = 3_000
BEATS_OF_LEASE = 4  # as SchedulerConfig has it


def configs(scenario: Scenario, policy: str, origin: str = "") -> dict[str, Any]:
    """The configuration of each service that decides. `origin`: where the scenario was read. Raises ConfigError for a policy or a setting
    that there is not."""
    origin = origin or scenario.name
    if policy and policy not in scenario.policies:
        raise ConfigError(f"there is no policy {policy!r} in {origin}; there are: {', '.join(sorted(scenario.policies)) or 'none'}")
    settings: dict[str, Any] = {"scheduler.lease_ms": max(LEASE_MS, BEATS_OF_LEASE * scenario.beat_ms)}
    settings |= {f"autoscaler.pools.{name}.{key}": value for name, pool in scenario.pools.items() for key, value in pool.autoscaler.items()}
    settings |= {**scenario.services, **scenario.policies.get(policy, {})}
    by_service: dict[str, list[str]] = {service: [] for service in DECIDERS}
    for key, value in settings.items():
        service, dot, setting = key.partition(".")
        if service not in DECIDERS:
            refuse(origin, f"service in {key}", service, DECIDERS)
        if not dot:
            raise ConfigError(f"{origin}: {key} should be {key}.SETTING")
        by_service[service].append(f"{setting}={value if isinstance(value, str) else json.dumps(value)}")
    try:
        return {name: load(machine_of(name).config, name, overrides=overrides) for name, overrides in by_service.items()}
    except ConfigError as error:
        raise ConfigError(f"{origin}: {str(error).removeprefix('--set ')}") from error
