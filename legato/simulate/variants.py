"""A scenario file made into one checked scenario for each of its policies."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from legato.machines import DECIDERS
from legato.simulate.loading import DEFAULT, FIELDS, Document, check_pool, flat, refuse, set_key, value_of
from legato.simulate.scenario import Pool, Scenario
from legato.simulate.settings import configs
from shared.contracts.ids import is_subject_token
from shared.core.errors import LegatoError
from shared.core.eviction import Eviction
from shared.core.shipped_laws import law_called
from shared.runtime.config import ConfigError, checked
from shared.sim.workloads import KINDS

EVICTIONS = get_args(Eviction)
FAULT_MIN_S = 0.1  # a fleet that is struck more often does nothing else
OF_THE_FILE = ("name", "question", "policies")  # what no policy changes
_NEXT = re.compile(r",(?=\s*[a-z_]+(?:\.[A-Za-z0-9_-]+)+\s*=)")  # between the settings of a policy that is said on the command line


def scenarios(document: Document, wanted: Sequence[str] = ()) -> dict[str, Scenario]:
    """A checked scenario for each policy, with that one alone in `policies`; of the policies that are `wanted`, in that order, else of all.
    A wanted one may be said in place: `scheduler.placement=round_robin`, several settings with commas. Raises ConfigError."""
    return {name: _variant(document, name, settings) for name, settings in set_by(document, wanted).items()}


def set_by(document: Document, wanted: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """What each of these policies sets, by whole keys: settings of services, and whatever else of the scenario. Raises ConfigError."""
    policies = document.values.get("policies", {})
    if not isinstance(policies, dict):
        raise ConfigError(f"{document.origin}: policies should be tables, [policies.NAME]")
    names = list(dict.fromkeys(wanted)) or list(policies) or [DEFAULT]
    return {name: _settings(document, policies, name) for name in names}


def _settings(document: Document, policies: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a policy sets, by whole keys."""
    if name in policies:
        if not isinstance(policies[name], dict):
            raise ConfigError(f"{document.origin}: policies.{name} should be a table, [policies.{name}]")
        return dict(flat(policies[name]))
    if name == DEFAULT:
        return {}
    if "=" in name:
        pairs = [text.partition("=") for text in _NEXT.split(name)]
        settings = {key.strip(): value_of(text) for key, _, text in pairs}
        for key in settings:
            check_pool(document.values.get("pools"), key, f"--policy {name}")
        return settings
    refuse(f"--policy {name}", f"policy {name}", name, list(dict.fromkeys([*policies, DEFAULT])))


def _variant(document: Document, name: str, settings: Mapping[str, Any]) -> Scenario:
    origin = f"{document.origin}, policy {name}" if settings else document.origin
    values = copy.deepcopy(document.values)
    own: dict[str, Any] = {}
    for key, value in settings.items():
        first = key.split(".")[0]
        if first in DECIDERS:
            own[key] = value
            continue
        in_file = name in document.values.get("policies", {})
        where = f"{document.origin}: policies.{name}.{key}" if in_file else f"--policy {name}"
        if first in OF_THE_FILE:
            allowed = [field for field in (*FIELDS, *DECIDERS) if field not in OF_THE_FILE]
            raise ConfigError(f"{where}: a policy sets no {first}; it may set {', '.join(allowed)}")
        set_key(values, key, value, where)
    services = values.get("services", {})
    if isinstance(services, dict):
        values["services"] = dict(flat(services))
    for missing in ("pools", "workload"):
        if missing not in values:
            shape = "[pools.NAME]" if missing == "pools" else "[[workload]]"
            raise ConfigError(f"{document.origin}: there is no {shape}: a scenario needs at least one")
    for pool, fields in values["pools"].items() if isinstance(values["pools"], dict) else ():
        if not isinstance(fields, dict):
            raise ConfigError(f"{document.origin}: pools.{pool} should be a table, [pools.{pool}]")
        checked(Pool, fields, f"{document.origin}: pools.{pool}")  # by its name, which the whole's error does not know
    scenario = checked(Scenario, values | {"policies": {name: own}}, document.origin)
    _check(scenario, name, origin)
    return scenario


def _check(scenario: Scenario, policy: str, origin: str) -> None:
    """What types do not say. Raises ConfigError."""
    if scenario.warm_up_s >= scenario.seconds:
        raise ConfigError(f"{origin}: warm_up_s ({scenario.warm_up_s:g}) must be less than seconds ({scenario.seconds:g})")
    for name, pool in scenario.pools.items():
        where = f"{origin}: pools.{name}"
        if not is_subject_token(name):
            raise ConfigError(f"{where}: a pool's name has letters, digits, - and _")
        try:
            law_called(pool.law)
        except LegatoError as error:
            raise ConfigError(f"{where}.law: {error}") from error
        if pool.eviction not in EVICTIONS:
            refuse(where, f"eviction {pool.eviction}", pool.eviction, EVICTIONS)
        if not pool.count and not pool.autoscaler:
            raise ConfigError(f"{where}.count is 0, and no autoscaler launches any: nobody would be served")
        low, high = pool.autoscaler.get("min"), pool.autoscaler.get("max")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            raise ConfigError(f"{where}.autoscaler: min ({low}) is more than max ({high})")
    for name in ("worker_killed_every_s", "worker_drained_every_s", "service_restarted_every_s", "database_away_every_s"):
        every_s = getattr(scenario.faults, name)
        if 0 < every_s < FAULT_MIN_S:
            raise ConfigError(f"{origin}: faults.{name} is {every_s:g} s: it must be 0 (never) or at least {FAULT_MIN_S:g}")
    granted_s = configs(scenario, policy, origin)["admission"].timeout_max_ms / 1e3
    for index, each in enumerate(scenario.workload):
        where = f"{origin}: workload.{index}"
        if each.kind not in KINDS:
            refuse(where, f"kind {each.kind}", each.kind, KINDS)
        clients = checked(KINDS[each.kind].settings, each.settings, f"{where}.with")
        for tenant in clients.tenants:
            asked_s = tenant.behaviour.timeout_s
            if asked_s > granted_s:
                said = f"admission.timeout_max_ms grants {granted_s:g}: all its calls would be refused"
                raise ConfigError(f"{where}.with: the timeout_s of tenant {tenant.name} is {asked_s:g}, and {said}")
