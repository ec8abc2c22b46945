"""Why a verdict is what it is, as numbers, and what would change it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relevo.bench.differences import Difference
from relevo.bench.overview import HEADLINES, figure_of
from relevo.bench.report import Conclusion, Replay, Setup, Summary
from relevo.bench.rows import RequestRow
from relevo.bench.statistics import Interval, percentile
from relevo.bench.verdict import INVALID

SLOW_LINK_SHARE = 0.2  # of TTFT: a transfer exposed for longer is worth a word


def reasons(conclusion: Conclusion) -> tuple[str, ...]:
    """For a verdict on valid runs; those of an invalid one are in its text."""
    verdict = conclusion.verdict
    if verdict.kind == INVALID:
        return ()
    mine, theirs = _best(conclusion)
    lines = [
        f"best co-located: {theirs.architecture}; best disaggregated: {mine.architecture}",
        *(_in_words(difference) for difference in verdict.differences),
        f"requests within all budgets per second: {_span(mine.rates['goodput_rps'])} disaggregated,"
        f" {_span(theirs.rates['goodput_rps'])} co-located,"
        f" of {mine.rates['offered_rps'].value:.2f} offered",
    ]
    for figure, share, text in HEADLINES:
        a, b = figure_of(mine, figure, share), figure_of(theirs, figure, share)
        if a is not None and b is not None:
            lines.append(f"{text}: {a:.1f} ms disaggregated, {b:.1f} ms co-located")
    a, b = mine.resources["pss_mib"], theirs.resources["pss_mib"]
    if a is not None and b is not None:
        lines.append(f"memory: {a:.0f} MiB disaggregated, {b:.0f} MiB co-located")
    return tuple(lines)


def would_change(
    conclusion: Conclusion, setup: Setup, replays: Sequence[Replay]
) -> tuple[str, ...]:
    """Each by what was measured: the link, the prompts' lengths, the load."""
    if conclusion.verdict.kind == INVALID:
        return ()
    mine, theirs = _best(conclusion)
    handed = [
        row
        for replay in replays
        if (replay.architecture, replay.load) == (mine.architecture, 1)
        for row in replay.run.rows
    ]
    return (*_link(handed), *_lengths(mine, theirs), *_loads(conclusion, setup))


def _best(conclusion: Conclusion) -> tuple[Summary, Summary]:
    """(disaggregated, co-located), at load 1."""
    at_one = {s.architecture: s for s in conclusion.summaries if s.load == 1}
    verdict = conclusion.verdict
    return at_one[verdict.best_disaggregated], at_one[verdict.best_colocated]


def _span(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f}"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _in_words(difference: Difference) -> str:
    d = difference
    shown = "shown" if d.shown else "not shown"
    if d.low is None or d.high is None:
        return f"{d.in_words}, not shown: there are not two rounds with it"
    if d.measure == "attainment":
        between = f"{d.low * 100:+.1f} to {d.high * 100:+.1f}"
    else:
        between = f"{math.expm1(d.low) * 100:+.1f} to {math.expm1(d.high) * 100:+.1f} %"
    return f"disaggregated less co-located: {d.in_words} [{between}], {shown}"


def _link(rows: Sequence[RequestRow]) -> list[str]:
    """Of the requests that were handed off."""
    servers = [row.server for row in rows if row.ok and row.server and row.server.kv_bytes]
    paces = [s.kv_bytes / s.prefill_ms for s in servers if s.kv_bytes and s.prefill_ms]
    exposed = [s.exposed_transfer_ms for s in servers if s.exposed_transfer_ms is not None]
    lines = []
    if paces:
        lines.append(
            f"link: of {len(servers)} requests handed off, KV is computed at "
            f"{percentile(paces, 0.5) / 1e3:.0f} MB/s (p50); a link that is slower than that, with "
            "what else it carries, no longer hides behind prefill"
        )
    if exposed:
        share = percentile(exposed, 0.5)
        ttft = percentile([r.ttft_ms for r in rows if r.ok and r.ttft_ms], 0.5)
        slow = "; a faster link would help" if share > SLOW_LINK_SHARE * ttft else ""
        lines.append(
            f"link: {share:.2f} ms of transfer are exposed (p50), of a TTFT of {ttft:.0f} ms{slow}"
        )
    return lines


def _lengths(mine: Summary, theirs: Summary) -> list[str]:
    lines = []
    for group in ("short", "middle", "long"):
        a, b = (figure_of(s, "e2e_ms", "p50", group) for s in (mine, theirs))
        c, d = (figure_of(s, "itl_p99_ms", "p50", group) for s in (mine, theirs))
        if a is not None and b is not None:
            line = f"{group} prompts: E2E p50 {a:.0f} ms disaggregated, {b:.0f} ms co-located"
            if c is not None and d is not None:
                line += f"; ITL p99 {c:.0f} and {d:.0f} ms"
            lines.append(line)
    return lines


def _loads(conclusion: Conclusion, setup: Setup) -> list[str]:
    verdict = conclusion.verdict
    lines = []
    for load in sorted({s.load for s in conclusion.summaries}):
        there = {
            s.architecture: s for s in conclusion.summaries if s.load == load and not s.invalid
        }
        if verdict.best_disaggregated in there and verdict.best_colocated in there:
            mine, theirs = there[verdict.best_disaggregated], there[verdict.best_colocated]
            lines.append(
                f"load × {load:g} ({setup.trace.rate * load:.2f} requests/s): attainment "
                f"{mine.rates['attainment'].value * 100:.0f} % disaggregated, "
                f"{theirs.rates['attainment'].value * 100:.0f} % co-located"
            )
    return lines if len(lines) > 1 else []


def assumptions(settings: Sequence[str]) -> tuple[str, ...]:
    """What every comparison takes for granted, after what this one does."""
    return (
        *settings,
        "each side's best architecture is taken after the fact, from more forms co-located than "
        "disaggregated: that favours staying co-located, and makes a difference that is none a "
        "little likelier than 5 in 100",
        "the intervals are over repeats on this machine; another machine, model or trace differs",
        "answers have the traced lengths (end-of-text is ignored), prompts are random tokens",
    )
