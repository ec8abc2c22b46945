"""A report's charts, with plotly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import plotly.graph_objects as go

from relevo.bench.metrics import SAMPLES, attainment
from relevo.bench.report import Replay, Report
from relevo.bench.rows import RequestRow

_COLOURS = ("#1f5fa8", "#d9822b", "#1a7f4b", "#8a4fbf", "#b3261e", "#5a6b7b", "#b59b00")
_PHASES = (
    ("queue", "#b9c2cc"), ("prefill", "#1f5fa8"), ("exposed transfer", "#d9822b"),
    ("decode", "#1a7f4b"),
)  # fmt: skip
SCALES = tuple(round(0.25 * 1.25**i, 3) for i in range(14))  # of the budgets: 0.25 to 4.5
_CDF_POINTS = 400
STALLS, WATERFALL = 12, 40


def all_charts(report: Report) -> Iterator[tuple[str, go.Figure]]:
    """(title, figure), in the report's order."""
    at_one = _by_architecture([r for r in report.replays if r.load == 1])
    for figure, title in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL")):
        yield (
            f"{title}: share of {'gaps' if figure == 'itl_ms' else 'requests'}",
            _cdf(at_one, SAMPLES[figure]),
        )
    yield "Latency over offered load", _over_load(report)
    yield "Goodput over the budgets' scale", _over_scale(report, at_one)
    yield "Throughput against interactivity", _pareto(report)
    yield "Tokens of the requests with the longest gaps", _stalls(at_one)
    for name, replays in at_one.items():
        rows = [row for row in replays[0].run.rows if row.server and row.ok]
        if rows:
            yield f"Where the time went: {name}, first round", _waterfall(rows)


def _by_architecture(replays: Sequence[Replay]) -> dict[str, list[Replay]]:
    found: dict[str, list[Replay]] = {}
    for replay in replays:
        found.setdefault(replay.architecture, []).append(replay)
    return found


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _layout(figure: go.Figure, x: str, y: str, **axes: object) -> go.Figure:
    figure.update_layout(
        template="plotly_white", height=380, margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis_title=x, yaxis_title=y, legend={"orientation": "h", "y": 1.12}, **axes,
    )  # fmt: skip
    return figure


def _cdf(
    replays: dict[str, list[Replay]], values_of: Callable[[Sequence[RequestRow]], list[float]]
) -> go.Figure:
    figure = go.Figure()
    for index, (name, repeats) in enumerate(replays.items()):
        values = sorted(v for r in repeats for v in values_of(r.run.rows))
        if values:
            shares = np.linspace(0, 1, min(_CDF_POINTS, len(values) + 1))
            points = np.quantile(values, shares)
            figure.add_scatter(
                x=points.round(3).tolist(), y=shares.round(4).tolist(), name=name,
                line={"color": _colour(index)},
            )  # fmt: skip
    return _layout(figure, "ms", "share", xaxis_type="log")


def _over_load(report: Report) -> go.Figure:
    figure = go.Figure()
    rate = report.setup.trace.rate
    for index, name in enumerate(report.setup.architectures):
        points = sorted(
            (s.load * rate, s.samples["all"]["ttft_ms"].percentiles)
            for s in report.summaries
            if s.architecture == name and "ttft_ms" in s.samples["all"]
        )
        for share, dash in (("p50", "solid"), ("p99", "dot")):
            figure.add_scatter(
                x=[x for x, _ in points], y=[p[share].value for _, p in points],
                name=f"{name}, {share}", mode="lines+markers",
                line={"color": _colour(index), "dash": dash},
            )  # fmt: skip
    return _layout(figure, "requests offered per second", "TTFT, ms", yaxis_type="log")


def _over_scale(report: Report, replays: dict[str, list[Replay]]) -> go.Figure:
    figure = go.Figure()
    for index, (name, repeats) in enumerate(replays.items()):
        rows = [row for r in repeats for row in r.run.rows]
        seconds = sum(r.run.span_s for r in repeats)
        figure.add_scatter(
            x=list(SCALES),
            y=[
                round(attainment(rows, report.setup.budgets, s) * len(rows) / seconds, 4)
                for s in SCALES
            ],
            name=name, mode="lines+markers", line={"color": _colour(index)},
        )  # fmt: skip
    return _layout(figure, "all budgets times", "requests within budgets per second",
                   xaxis_type="log")  # fmt: skip


def _pareto(report: Report) -> go.Figure:
    figure = go.Figure()
    devices = int(report.setup.settings["devices"] or 1)
    for index, name in enumerate(report.setup.architectures):
        mine = [s for s in report.summaries if s.architecture == name]
        points = sorted(
            (
                1e3 / s.samples["all"]["tpot_ms"].percentiles["p50"].value,
                s.rates["output_tokens_per_s"].value / devices,
            )
            for s in mine
            if "tpot_ms" in s.samples["all"]
            and s.samples["all"]["tpot_ms"].percentiles["p50"].value > 0
        )
        figure.add_scatter(
            x=[x for x, _ in points], y=[y for _, y in points], name=name, mode="lines+markers",
            line={"color": _colour(index)},
        )  # fmt: skip
    return _layout(figure, "tokens/s per user (1 / TPOT p50)", "tokens/s per device")


def _stalls(replays: dict[str, list[Replay]]) -> go.Figure:
    """A line per request, a mark per token."""
    figure = go.Figure()
    found = [
        (max(row.gaps_ms(), default=0.0), name, replay.round, row)
        for name, repeats in replays.items()
        for replay in repeats
        for row in replay.run.rows
        if row.ok
    ]
    found.sort(key=lambda item: -item[0])
    names = list(replays)
    for gap, name, round, row in found[:STALLS]:
        label = f"{name} r{round + 1} #{row.index}: {gap:.0f} ms"
        figure.add_scatter(
            x=[round_ms(at - row.sent_ms) for at in row.arrivals_ms],
            y=[label] * len(row.arrivals_ms), mode="markers", showlegend=False,
            marker={"size": 5, "color": _colour(names.index(name))},
        )  # fmt: skip
    figure.update_yaxes(automargin=True)
    return _layout(figure, "ms since the request was sent", "")


def round_ms(value: float) -> float:
    return round(value, 1)


def _waterfall(rows: Sequence[RequestRow]) -> go.Figure:
    """Of the first requests: queue, prefill, exposed transfer, then decode until the last token."""
    figure = go.Figure()
    shown = rows[:WATERFALL]
    spans: dict[str, list[float]] = {name: [] for name, _ in _PHASES}
    for row in shown:
        server = row.server
        assert server is not None
        queue, prefill = server.queue_ms or 0.0, server.prefill_ms or 0.0
        exposed = server.exposed_transfer_ms or 0.0
        rest = max(0.0, (row.e2e_ms or 0.0) - queue - prefill - exposed)
        for (name, _), value in zip(_PHASES, (queue, prefill, exposed, rest), strict=True):
            spans[name].append(round_ms(value))
    for name, colour in _PHASES:
        figure.add_bar(
            y=[f"#{row.index}" for row in shown], x=spans[name], name=name, orientation="h",
            marker={"color": colour},
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return _layout(figure, "ms since the request was sent", "request")
