"""Prometheus metrics, read off the router's state when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relevo.router.router import Router

_ROUTER_COUNTERS = {
    "requests": "Requests taken in",
    "generated_tokens": "Tokens generated",
    "cancelled": "Requests given up by their client, or ended by a stop string",
    "failed": "Requests that ended in an error",
    "refused": "Requests turned away because the queue was full",
    "resubmitted": "Requests sent to another worker after theirs was lost",
    "not_disaggregated": "Prompts that decode workers computed for want of a prefill worker",
    "workers_lost": "Workers that died, fell silent or were replaced",
}


class _RouterCollector(Collector):
    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        router = self._router
        for name, help_text in _ROUTER_COUNTERS.items():
            yield CounterMetricFamily(
                f"relevo_{name}", help_text, value=float(router.counters[name])
            )
        yield GaugeMetricFamily("relevo_queued", "Requests waiting for dispatch", router.queued)
        yield GaugeMetricFamily("relevo_running", "Requests at workers", router.running)
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        labels = ["worker", "role"]
        gauges = {
            "running": "Sequences in a worker's schedule",
            "waiting": "Sequences waiting for pages",
            "free_pages": "KV pages free or evictable",
            "quarantined_pages": "KV pages that a lost hand-off may still write",
            "slots": "Counter slots in use",
            "in_flight": "Writes posted and not over",
        }
        families = {
            name: GaugeMetricFamily(f"relevo_worker_{name}", text, labels=labels)
            for name, text in gauges.items()
        }
        states = GaugeMetricFamily(
            "relevo_worker_handoffs", "Hand-offs that are not done", labels=[*labels, "state"]
        )
        errors = CounterMetricFamily(
            "relevo_worker_transfer_errors", "Writes that failed", labels=[*labels, "kind"]
        )
        counters: dict[str, CounterMetricFamily] = {}
        for member in self._router.registry:
            values = [member.info.worker, member.info.role.value]
            for name, gauge in families.items():
                gauge.add_metric(values, float(getattr(member.load, name)))
            for state, count in member.load.handoffs.items():
                states.add_metric([*values, state], float(count))
            for kind, count in member.errors.items():
                errors.add_metric([*values, kind], float(count))
            for name, value in member.counters.items():
                if name not in counters:
                    counters[name] = CounterMetricFamily(
                        f"relevo_worker_{name}", f"Worker: {name}", labels=labels
                    )
                counters[name].add_metric(values, float(value))
        yield from families.values()
        yield from (states, errors)
        yield from counters.values()


def render_metrics(router: Router) -> bytes:
    """In Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_RouterCollector(router))
    return generate_latest(registry)
