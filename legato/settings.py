"""What each service reads of the configuration: to be checked before anything is started or waited for."""

import importlib

from shared.runtime.config import check_setting
from shared.runtime.lifecycle import Options

_MODELS = "shared.core.catalogue.ModelsConfig"
_EVERY = {
    "bus": "shared.runtime.bus.BusConfig",
    "admin": "shared.runtime.admin.AdminConfig",
    "telemetry": "shared.runtime.telemetry.TelemetryConfig",
}
# The struct of each section; named, not imported, so that a process has in memory only what its own service needs.
SECTIONS_OF = {
    "admission": {"admission": "services.admission.config.AdmissionConfig", "models": _MODELS},
    "autoscaler": {"autoscaler": "services.autoscaler.config.AutoscalerConfig"},
    "gateway": {"gateway": "services.gateway.config.GatewayConfig", "models": _MODELS},
    "kv_registry": {"kv_registry": "services.kv_registry.config.KvRegistryConfig"},
    "router": {"router": "services.router.config.RouterConfig", "models": _MODELS},
    "scheduler": {"scheduler": "services.scheduler.config.SchedulerConfig"},
    "worker": {
        "worker": "services.worker.config.WorkerConfig",
        "sglang": "services.worker.engines.sglang_config.SglangConfig",
        "simulated": "services.worker.engines.simulated.SimulatedConfig",
    },
    "workflow": {"workflow": "services.workflow.config.WorkflowConfig", "postgres": "shared.runtime.db.DatabaseConfig"},
}


def check(options: Options) -> None:
    """Raise ConfigError, a LegatoError, for the first setting of the service that cannot be."""
    for setting in options.overrides:
        check_setting(setting)
    for section, place in {**SECTIONS_OF[options.service], **_EVERY}.items():
        module, _, name = place.rpartition(".")
        options.section(getattr(importlib.import_module(module), name), section)
