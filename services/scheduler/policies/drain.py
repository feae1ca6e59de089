"""When a step that arrives now would start.

Rule: at once when a slot is free and nobody waits. Else after as many service times as there are steps before it and itself, shared by all
slots: (waiting + 1) x mean service time / slots. 0 as well when no worker is ready: nothing can be predicted then, and the report's
`workers` says so.
Inputs: steps waiting, slots, slots in use, mean service time (measured, exponentially weighted, per model).
Constant: SERVICE_MS until the first measurement. Source: Little's law (1961) for a system that is kept busy.
"""

SERVICE_MS = 2_000.0
SMOOTHING = 0.1  # weight of the newest measurement


def drain_ms(waiting: int, slots: int, busy: int, service_ms: float) -> int:
    """Predicted wait in milliseconds."""
    if slots == 0 or (waiting == 0 and busy < slots):
        return 0
    return max(1, round((waiting + 1) * (service_ms or SERVICE_MS) / slots))


def smoothed(service_ms: float, measured_ms: float) -> float:
    """The mean service time after one more measurement; 0 means that there was none."""
    return measured_ms if service_ms == 0 else service_ms + SMOOTHING * (measured_ms - service_ms)
