"""The report as one HTML file that asks for nothing from outside: verdict first, then charts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from plotly.io import to_html
from plotly.offline import get_plotlyjs

from relevo.bench.charts import all_charts
from relevo.bench.overview import OVERVIEW_COLUMNS, overview
from relevo.bench.report import Report, Summary
from relevo.bench.statistics import Interval
from relevo.bench.summaries import GROUPS, SHARES

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2530; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
.verdict { border-left: 6px solid #888; padding: .8rem 1.2rem; background: #f4f6f8;
  font-size: 1.1rem }
.adopt { border-color: #1a7f4b } .stay { border-color: #1f5fa8 } .invalid { border-color: #b3261e }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .7rem;
  border-bottom: 1px solid #dde2e7; text-align: right } td:first-child, th:first-child {
  text-align: left; white-space: nowrap }
.wide { overflow-x: auto }
"""
_FIGURES = (
    ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("longest_gap_ms", "longest gap"),
    ("itl_p99_ms", "a request's ITL p99"), ("e2e_ms", "E2E"), ("queue_ms", "queue"),
    ("prefill_ms", "prefill"), ("transfer_ms", "transfer"),
    ("exposed_transfer_ms", "exposed transfer"), ("kv_bytes", "KV bytes"),
)  # fmt: skip


def write_html(path: Path, reports: Mapping[str, Report]) -> None:
    """`reports` by name; one may have none."""
    title = next(iter(reports.values())).setup.model
    body = "".join(_section(name, report, index) for index, (name, report) in
                   enumerate(reports.items()))  # fmt: skip
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Relevo: should {html.escape(title)} be disaggregated?</title>"
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>{body}</body></html>",
        encoding="utf-8",
    )


def _section(name: str, report: Report, index: int) -> str:
    setup = report.setup
    heading = html.escape(f"{name}: {setup.model}" if name else setup.model)
    charts = "".join(
        f"<h2>{html.escape(title)}</h2>"
        + to_html(figure, include_plotlyjs=False, full_html=False, div_id=f"chart-{index}-{number}")
        for number, (title, figure) in enumerate(all_charts(report))
    )
    return (
        f"<h1>{heading}: prefill and decode apart, or together?</h1>"
        f'<p class="verdict {html.escape(report.verdict)}"><b>{html.escape(report.text)}</b></p>'
        + _conditions(report)
        + _table(OVERVIEW_COLUMNS, map(overview, report.summaries))
        + _list("Why", report.reasons)
        + _list("What would change it", report.would_change)
        + _list("What was assumed", setup.assumptions)
        + "<h2>All figures</h2>"
        + _summaries(report.summaries)
        + charts
        + _tail(report)
    )


def _conditions(report: Report) -> str:
    budgets, trace = report.setup.budgets, report.setup.trace
    pace = f"{trace.concurrency} at once" if trace.concurrency else f"{trace.rate:.2f} a second"
    return (
        f"<p>Budgets: TTFT {budgets.ttft_ms:g} ms, TPOT {budgets.tpot_ms:g} ms, ITL p99 of a "
        f"request {budgets.itl_p99_ms:g} ms; times in ms. Trace: {html.escape(trace.name)}, "
        f"{trace.requests} requests in {trace.span_s:.4g} s ({pace}; gaps' coefficient of "
        f"variation {trace.gap_cv:g}); p50 {trace.prompt_tokens_p50:g} prompt and "
        f"{trace.output_tokens_p50:g} answer tokens.</p>"
    )


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _show(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.4g}"
    return f"{interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def _summaries(summaries: Sequence[Summary]) -> str:
    rates = list(summaries[0].rates)
    text = _table(
        ["architecture", "load", "not counted", *rates],
        (
            [s.architecture, s.load, s.invalid, *(_show(s.rates[key]) for key in rates)]
            for s in summaries
        ),
    )
    resources = list(summaries[0].resources)
    text += _table(
        ["architecture", "load", *resources],
        (
            [s.architecture, s.load,
             *("unavailable" if s.resources[k] is None else s.resources[k] for k in resources)]
            for s in summaries
        ),
    )  # fmt: skip
    for group in GROUPS:
        rows = [
            [s.architecture, s.load, words, sample.n, *map(_show, sample.percentiles.values())]
            for key, words in _FIGURES
            for s in summaries
            if (sample := s.samples[group].get(key)) is not None
        ]
        if rows:
            name = "mixed (all)" if group == "all" else group
            text += f"<details><summary>{name} prompts, ms</summary>"
            text += _table(["architecture", "load", "figure", "n", *SHARES], rows) + "</details>"
    return text


def _tail(report: Report) -> str:
    setup = report.setup
    text = ""
    if report.interference:
        text += "<h2>Interference</h2>" + _table(
            list(report.interference[0]), (list(row.values()) for row in report.interference)
        )
    if report.tuning:
        text += "<h2>Tuning</h2>" + _table(
            ["form", "architecture", "attainment", "E2E p50, ms", "taken"],
            ([t.form, t.architecture, t.attainment, t.e2e_p50_ms, "✓" if t.taken else ""]
             for t in report.tuning),
        )  # fmt: skip
    if report.recovery:
        text += "<h2>Loss of a worker</h2>" + _table(
            ["architecture", "killed", "at, s", "until good again, s", "requests lost"],
            ([r.architecture, r.killed, r.at_s,
              "not within the replay" if r.until_good_s is None else r.until_good_s, r.lost]
             for r in report.recovery),
        )  # fmt: skip
    settings = {**setup.settings, **setup.machine, "created": setup.created,
                "trace": setup.trace.name, "trace digest": setup.trace.digest,
                "notes": "; ".join(setup.trace.notes),
                "energy": report.replays[0].energy.source}  # fmt: skip
    text += "<h2>Settings</h2>" + _table(["", ""], settings.items())
    first = next(iter(setup.architectures.values()))
    text += _table(
        ["architecture", *first],
        ([name, *values.values()] for name, values in setup.architectures.items()),
    )
    return text + "<h2>Formulas</h2>" + _table(["", ""], report.formulas.items())
