"""Policies are chosen by name, and whoever errs is told the names."""

from typing import Any, get_args

import pytest

from services.autoscaler.config import AutoscalerConfig, Policy
from services.scheduler.config import Order, Placement, Queueing, SchedulerConfig
from shared.runtime.config import ConfigError, load


def refused(kind: type[Any], section: str, setting: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(kind, section, overrides=[setting])
    return str(error.value)


@pytest.mark.parametrize(("field", "choices"), [("placement", Placement), ("order", Order), ("queueing", Queueing)])
def test_an_unknown_policy_is_refused_with_all_that_there_are(field: str, choices: Any) -> None:
    message = refused(SchedulerConfig, "scheduler", f"{field}=best")
    assert field in message
    assert all(name in message for name in get_args(choices))
    for name in get_args(choices):
        assert getattr(load(SchedulerConfig, "scheduler", overrides=[f"{field}={name}"]), field) == name


def test_constants_of_a_policy_are_set_by_its_name_and_checked() -> None:
    config = load(SchedulerConfig, "scheduler", overrides=["smg.cache_threshold=0.5", "llm_d.queue_weight=0"])
    assert (config.smg.cache_threshold, config.smg.balance_abs_threshold, config.llm_d.queue_weight) == (0.5, 64, 0)
    assert "cache_threshold" in refused(SchedulerConfig, "scheduler", "smg.cache_treshold=0.5")
    assert "cache_threshold" in refused(SchedulerConfig, "scheduler", "smg.cache_threshold=1.5")


def test_an_unknown_policy_of_a_pool_is_refused_with_all_that_there_are() -> None:
    message = refused(AutoscalerConfig, "autoscaler", "pools.default.policy=best")
    assert all(name in message for name in get_args(Policy))
    for name in get_args(Policy):
        config = load(AutoscalerConfig, "autoscaler", overrides=[f"pools.default.policy={name}", "pools.default.knative.panic_threshold=3"])
        assert (config.pools["default"].policy, config.pools["default"].knative.panic_threshold) == (name, 3.0)
