import re
import shutil
import subprocess

import msgspec
import pytest

from relevo.bench.report import load_report
from relevo.bench.report_html import write_html
from relevo.bench.report_table import print_report, print_reports
from relevo.bench.verify import contradictions, run_verify
from relevo.errors import ConfigError

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")


def test_a_report_says_yes_with_numbers(report):
    assert (report.valid, report.verdict, report.better) == (True, "adopt", "disaggregated-1:1")
    assert any(re.match(r"TPOT p50: \d", line) for line in report.reasons)
    assert any("KV is computed at 37 MB/s" in line for line in report.would_change)
    assert any(line.startswith("load × 1.5") for line in report.would_change)
    groups = report.summaries[0].samples
    assert groups["all"]["ttft_ms"].n == groups["short"]["ttft_ms"].n + groups["long"]["ttft_ms"].n
    assert report.summaries[0].resources["pss_mib"] == 360.0
    assert report.summaries[0].resources["energy_j"] is None


def test_it_is_read_back_and_verified(report, tmp_path, capsys):
    path = tmp_path / "report.json"
    path.write_bytes(report.to_bytes())
    assert load_report(path) == report
    assert run_verify(path) == 0
    assert "(adopt) follow from them" in capsys.readouterr().out


def every_row(report):
    return [(i, j) for i, r in enumerate(report.replays) for j in range(len(r.run.rows))]


def changed(report, replay, row, **changes):
    """The report with one row changed, and nothing else."""
    replays = list(report.replays)
    rows = list(replays[replay].run.rows)
    rows[row] = msgspec.structs.replace(rows[row], **changes)
    run = msgspec.structs.replace(replays[replay].run, rows=tuple(rows))
    replays[replay] = msgspec.structs.replace(replays[replay], run=run)
    return msgspec.structs.replace(report, replays=tuple(replays))


def test_a_change_of_any_row_is_found(report):
    for replay, row in every_row(report)[::7]:
        late = tuple(t + 0.001 for t in report.replays[replay].run.rows[row].arrivals_ms)
        assert contradictions(changed(report, replay, row, arrivals_ms=late))
        assert contradictions(changed(report, replay, row, outcome="refused"))


def test_a_change_of_a_row_after_a_loss_is_found(report):
    recovery = report.recovery[0]
    rows = list(recovery.run.rows)
    rows[3] = msgspec.structs.replace(rows[3], outcome="failed")
    run = msgspec.structs.replace(recovery.run, rows=tuple(rows))
    changed = msgspec.structs.replace(recovery, run=run)
    assert contradictions(msgspec.structs.replace(report, recovery=(changed,)))
    changed = msgspec.structs.replace(recovery, until_good_s=0.1)
    assert contradictions(msgspec.structs.replace(report, recovery=(changed,)))


@pytest.mark.parametrize("changes", [{"chunk_tokens": (1, 2)}, {"arrivals_ms": (-9.0, -8.0)}])
def test_rows_that_make_no_sense_are_a_finding_and_no_crash(report, changes):
    assert contradictions(changed(report, 0, 0, **changes))


def test_a_replay_or_row_that_is_missing_is_found(report):
    assert contradictions(msgspec.structs.replace(report, replays=report.replays[1:]))
    first = report.replays[0]
    run = msgspec.structs.replace(first.run, rows=first.run.rows[1:])
    short = msgspec.structs.replace(first, run=run)
    assert contradictions(msgspec.structs.replace(report, replays=(short, *report.replays[1:])))


def test_a_summary_or_verdict_that_does_not_follow_is_found(report, tmp_path, capsys):
    wrong = msgspec.structs.replace(report, verdict="stay")
    assert contradictions(wrong) == ["verdict: does not follow from the rows"]
    first = msgspec.structs.replace(report.summaries[0], load=0.9)
    wrong = msgspec.structs.replace(report, summaries=(first, *report.summaries[1:]))
    path = tmp_path / "report.json"
    path.write_bytes(wrong.to_bytes())
    assert run_verify(path) == 1
    assert "summaries: does not follow" in capsys.readouterr().out


def test_a_run_that_was_late_cannot_be_called_valid(report):
    rows = report.replays[0].run.rows
    late = tuple(msgspec.structs.replace(r, sent_ms=r.scheduled_ms + 80) for r in rows)
    run = msgspec.structs.replace(report.replays[0].run, rows=late)
    first = msgspec.structs.replace(report.replays[0], run=run, digest=run.digest)
    found = contradictions(msgspec.structs.replace(report, replays=(first, *report.replays[1:])))
    assert any("said to be valid" in line for line in found)


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"{", "not a report"), (b'{"schema": 1}', "not a report"), (None, "No such file")],
)
def test_what_is_no_report_is_refused(tmp_path, content, match):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=match):
        load_report(path)


def test_a_newer_schema_is_refused(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.structs.replace(report, schema=99).to_bytes())
    with pytest.raises(ConfigError, match="schema 99, this reads 1"):
        load_report(path)


def test_reports_stand_side_by_side_in_the_terminal(report, capsys):
    print_reports({"a.json": report, "b.json": report})
    said = capsys.readouterr().out
    assert "a.json" in said
    assert "b.json" in said
    assert said.count("adopt disaggregation") == 2


def test_eighty_columns_cut_no_name(report, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    longest = "disaggregated-1:1-local-256"
    summaries = [msgspec.structs.replace(s, architecture=longest) for s in report.summaries]
    print_report(msgspec.structs.replace(report, summaries=tuple(summaries)))
    said = capsys.readouterr().out
    assert said.count(longest) >= len(summaries)
    assert "…" not in said
    assert "E2E" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_page_asks_for_nothing_from_outside(report, tmp_path):
    path = tmp_path / "report.html"
    write_html(path, {"one": report, "two": report})
    page = path.read_text()
    # The library's own text names addresses; what would be fetched is in attributes and styles.
    own = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)\s*=|url\(|@import", own)
    assert "SmolLM2 &lt;135M&gt;" in own
    first = [own.index(words) for words in ("adopt disaggregation", "in budget", "Why")]
    assert first == sorted(first)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_every_chart_without_an_error(report, tmp_path):
    path = tmp_path / "report.html"
    write_html(path, {"": report})
    ended = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--v=0", "--virtual-time-budget=20000", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    errors = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    assert errors == []
    drawn = re.findall(r'id="chart-0-(\d+)" class="plotly-graph-div js-plotly-plot"', ended.stdout)
    assert len(drawn) == 9
    assert ended.stdout.count('class="main-svg"') >= 9
