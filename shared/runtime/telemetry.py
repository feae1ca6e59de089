"""Traces and metrics of one process. Traces go out by OTLP when an endpoint is configured; metrics are read at /metrics."""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.contracts.envelope import Message

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SECONDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)  # bounds of the buckets of decision times
CLOSE_S = 3.0  # at the end of a process, for what was not sent yet

_PROPAGATOR = TraceContextTextMapPropagator()


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[telemetry]`: an OTLP/HTTP endpoint such as http://127.0.0.1:4318/v1/traces; empty: no traces leave the process."""

    otlp_endpoint: str = ""


class _Decisions(Collector):
    """Inputs taken, by type, and how long each took. prometheus_client's own metrics take a lock for each sample, which is not needed where
    one thread counts; it cost 2% of a busy service."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._taken: dict[type[Message], int] = {}
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def add(self, kind: type[Message], seconds: float) -> None:
        self._taken[kind] = self._taken.get(kind, 0) + 1
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def collect(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        taken = CounterMetricFamily("legato_decisions", "Inputs taken, by type", labels=["type", *names])
        for kind, count in list(self._taken.items()):
            taken.add_metric([str(kind.__struct_config__.tag), *values], count)
        yield taken
        bounds, counts = [*map(str, SECONDS), "+Inf"], accumulate(self._buckets)
        took = HistogramMetricFamily("legato_decision_seconds", "Time from taking an input to having sent what follows", labels=names)
        took.add_metric(values, list(zip(bounds, counts, strict=True)), self._seconds)
        yield took


class Telemetry:
    """Counters by name, decision times, spans with the step's own parent. Cheap when no endpoint is configured."""

    def __init__(self, service: str, instance: str, config: TelemetryConfig) -> None:
        self.registry = CollectorRegistry()
        labels = {"service": service, "instance": instance}
        self._decisions = _Decisions(labels)
        self.registry.register(self._decisions)
        self._events = Counter("legato_events", "Things worth counting", ["event", *labels], registry=self.registry)
        self._labels = labels
        self._tracer: trace.Tracer | None = None
        self._provider: TracerProvider | None = None
        if config.otlp_endpoint:
            self._provider = _provider({"service.name": f"legato-{service}", "service.instance.id": instance}, config.otlp_endpoint)
            self._tracer = self._provider.get_tracer("legato")

    @property
    def tracing(self) -> bool:
        return self._tracer is not None

    def count(self, event: str, amount: int = 1) -> None:
        self._events.labels(event=event, **self._labels).inc(amount)

    def decision(self, event: Message, outputs: Sequence[Message], started_ns: int) -> None:
        """One input was taken and its outputs were sent."""
        self._decisions.add(type(event), (time.time_ns() - started_ns) / 1e9)
        if self._tracer is not None:
            for output in outputs:
                if output.trace:
                    self.span(str(type(output).__struct_config__.tag), output, started_ns)

    def span(self, name: str, message: Message, start_ns: int, **attributes: str | int | float) -> None:
        """Record a finished span under the message's trace."""
        if self._tracer is None or not message.trace:
            return
        context = _PROPAGATOR.extract({"traceparent": message.trace})
        span = self._tracer.start_span(
            name,
            context=context,
            start_time=start_ns,
            attributes={"legato.step": message.step, "legato.tenant": message.tenant, **attributes},
        )
        span.end(time.time_ns())

    def metrics(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)

    def close(self) -> None:
        """Send what waits. A collector that is away, for which the SDK would wait 30 s, does not hold up the end of the process."""
        if self._provider is not None:
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            sending.join(CLOSE_S)


def _provider(resource: Mapping[str, str], endpoint: str) -> "TracerProvider":
    """Sends spans in batches. Imported only where traces are wanted: it doubles a process's start time."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
