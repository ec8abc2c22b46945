"""`relevo bench` as a person runs it: the command line, real deployments, real files."""

import html
import json
import subprocess
import sys

import pytest

from relevo.bench.report import load_report
from tests.integration.conftest import deployed


def bench(*arguments, code=0, timeout=280):
    ended = subprocess.run(
        [sys.executable, "-m", "relevo", "bench", *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    return ended


@pytest.fixture(scope="module")
def endpoints(smollm):
    with deployed(smollm, mixed=1) as together, deployed(smollm, prefill=1, decode=1) as apart:
        yield together.url, apart.url


def test_servers_that_are_there_are_compared_like_our_own(endpoints, tmp_path):
    together, apart = endpoints
    out = tmp_path / "report"
    ended = bench(
        "compare", "--url", f"together={together}", "--url", f"apart={apart}",
        "--workload", "short", "--rate", 3, "--duration", 4, "--rounds", 2, "--quick",
        "--out", out, "--json",
    )  # fmt: skip
    said = json.loads(ended.stdout)
    assert said["valid"] is True
    assert said["verdict"] in ("adopt", "stay", "no-difference")
    report = load_report(out / "report.json")
    assert json.loads(report.to_bytes()) == said
    assert [r.architecture for r in report.replays] == ["together", "apart", "apart", "together"]
    assert len({r.run.trace for r in report.replays}) == 1
    assert all(row.ok for r in report.replays for row in r.run.rows)
    handed_off = [
        row.server.kv_bytes
        for r in report.replays
        if r.architecture == "apart"
        for row in r.run.rows
        if row.prompt_tokens > 40
    ]
    assert all(handed_off)
    assert html.escape(report.text) in (out / "report.html").read_text()
    assert "follow from them" in bench("verify", out / "report.json").stdout
    page = tmp_path / "two.html"
    bench("report", out / "report.json", out / "report.json", "--out", page)
    assert page.read_text().count("<h1>") == 1  # one report by its name, given twice


def test_a_trace_file_is_replayed_against_any_server(endpoints, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,300,5\r\n2023-11-16 18:17:05.9799600,40,9",
        newline="",
    )
    out = tmp_path / "rows.json"
    ended = bench("load", "--url", endpoints[1], "--trace", trace, "--rate-scale", 4,
                  "--length-scale", 0.5, "--out", out, "--json", "--ttft-ms", 60_000)  # fmt: skip
    found = json.loads(ended.stdout)
    assert (found["valid"], found["requests"]) == (True, 2)
    assert found["rates"]["attainment"] == 1.0
    rows = json.loads(out.read_text())["rows"]
    assert [row["prompt_tokens"] for row in rows] == [150, 20]
    assert [row["scheduled_ms"] for row in rows] == [0.0, 500.0]


def test_a_run_that_does_not_count_ends_with_an_error(endpoints):
    ended = bench("load", "--url", endpoints[0], "--workload", "short", "--rate", 3000,
                  "--length-scale", 0.02,
                  "--duration", 0.4, "--model", "SmolLM2-135M-Instruct", code=1)  # fmt: skip
    assert "this run does not count" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--url", "http://127.0.0.1:9"], "url: 1 given; a comparison needs two"),
        (["compare", "--devices", "999"], "devices: 999 is not between 1 and"),
        (["compare", "--architectures", "replicas"], "architectures: 'replicas' is none of"),
        (["compare", "--architectures", "disaggregated"], "architectures: needs disaggregated and"),
        (["compare", "--rounds", "1"], "rounds: 1 is below 2"),
        (["compare", "--utilisation", "0"], "utilisation: 0 is not above 0"),
        (["compare", "--workload", "shrt", "--rate", "1"], "workload: 'shrt' is none of"),
        (["compare", "--trace", "nowhere.csv"], "trace: nowhere.csv"),
        (["load", "--url", "http://127.0.0.1:9", "--rate", "1"], "url: http://127.0.0.1:9 is no"),
        (["load", "--url", "http://127.0.0.1:9"], "rate: say how many requests a second"),
        (["verify", "nowhere.json"], "report: nowhere.json: No such file"),
        (["compare", "--power-csv", "nowhere.csv"], "power-csv: nowhere.csv"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(arguments, said, tmp_path):
    ended = bench(*arguments, code=2, timeout=60)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_quick_comparison_has_a_verdict(tmp_path):
    ended = bench("compare", "--quick", "--out", tmp_path, "--json", timeout=8 * 60)
    said = json.loads(ended.stdout)
    assert said["valid"] is True
    assert {s["architecture"].split("-")[0] for s in said["summaries"]} == {
        "replicas", "all", "disaggregated",
    }  # fmt: skip
    assert (tmp_path / "report.html").exists()
