"""Which trace the options of a benchmark mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from relevo.bench.calibrate import Pace, rate_for
from relevo.bench.trace import Trace
from relevo.bench.workloads import Process, make_closed_loop, make_workload
from relevo.errors import ConfigError
from relevo.launch.model_source import ModelSource

DEFAULT_S = 60.0
LOOP_REQUESTS = 100
_DRAFT_RATE = 20.0  # enough requests to see what one costs, before there is a rate


def trace_source(
    options: argparse.Namespace, model: ModelSource | None
) -> Callable[[TracePace | None], Trace]:
    """What makes the trace, once there is a pace to set its rate by where the options leave that
    open. Reads or drafts it at once, so that what is wrong is said before anything starts."""
    _check_source(options)
    if options.trace is not None:
        recorded = _from_file(options, model)

        def thinned(pace: TracePace | None) -> Trace:
            if options.keep is not None or pace is None or recorded.concurrency is not None:
                return recorded
            share = pace.rate(recorded) / recorded.rate
            return recorded if share >= 1 else recorded.thinned(share, options.seed)

        return thinned
    if options.concurrency is not None:
        loop = make_closed_loop(
            options.workload, options.concurrency, options.requests or LOOP_REQUESTS, options.seed
        ).scaled_lengths(options.length_scale)
        return lambda pace: loop

    def made(rate: float, cv: float, duration: float) -> Trace:
        trace = make_workload(options.workload, Process(rate, cv), duration, options.seed)
        return trace.scaled_lengths(options.length_scale)

    draft = made(_DRAFT_RATE, options.cv, DEFAULT_S)

    def paced(pace: TracePace | None) -> Trace:
        if options.rate is None and pace is None:
            raise ConfigError("rate", "say how many requests a second, or --concurrency")
        rate = options.rate or (pace.rate(draft) if pace else 0.0)
        return made(rate, options.cv, options.duration or DEFAULT_S)

    return paced


def _check_source(options: argparse.Namespace) -> None:
    """Refuses what would be ignored. Raises ConfigError."""
    recorded = options.trace is not None
    for key in ("window", "rate_scale", "keep", "jitter"):
        if getattr(options, key) is not None and not recorded:
            raise ConfigError(key.replace("_", "-"), "only with --trace")
    if options.concurrency is not None and (recorded or options.rate or options.duration):
        raise ConfigError("concurrency", "a closed loop has --requests; no trace, rate, duration")
    if options.requests is not None and options.concurrency is None:
        raise ConfigError("requests", "only with --concurrency")


def _from_file(options: argparse.Namespace, model: ModelSource | None) -> Trace:
    from relevo.bench.trace_files import read_trace

    starts = Process(options.rate or 1.0, options.cv)
    trace = read_trace(options.trace, _token_counter(model), starts, options.seed)
    if options.window is not None:
        trace = trace.window(*options.window)
    if options.rate_scale is not None:
        trace = trace.scaled_rate(options.rate_scale)
    if options.duration is not None and options.duration < trace.span_s:
        trace = trace.window(0, options.duration)
    if options.keep is not None:
        trace = trace.thinned(options.keep, options.seed)
    if options.jitter is not None:
        trace = trace.jittered(options.jitter, options.seed)
    return trace if options.length_scale == 1 else trace.scaled_lengths(options.length_scale)


def _token_counter(model: ModelSource | None) -> Callable[[str], int]:
    """By the model's tokenizer; four characters a token where there is none."""
    if model is None:
        return lambda text: -(-len(text) // 4)
    from relevo.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model.path, model.cache)
    return lambda text: len(tokenizer.encode(text, special=False))


class TracePace:
    """Sets the rate so that the devices are busy for a share of the time."""

    def __init__(self, pace: Pace, devices: int, utilisation: float) -> None:
        self._pace = pace
        self._devices = devices
        self._utilisation = utilisation

    def rate(self, trace: Trace) -> float:
        if self._pace.context is not None:
            trace = trace.fitted(self._pace.context)
        return rate_for(trace, self._pace, self._devices, self._utilisation)
