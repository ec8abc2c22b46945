"""Options of `relevo bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _window(text: str) -> tuple[float, float]:
    begin, colon, end = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not BEGIN:END, in seconds")
    return float(begin), float(end)


def _cores(text: str) -> tuple[int, ...]:
    return tuple(int(core) for core in text.split(","))


def add_benchmarks(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="bench", metavar="BENCHMARK", required=True)
    _compare(kinds.add_parser("compare", help="should you disaggregate? A verdict, with reasons"))
    _load(kinds.add_parser("load", help="replay a trace against a server"))
    report = kinds.add_parser("report", help="compare reports of earlier runs")
    report.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    report.add_argument("--out", type=Path, default=None, help="write an HTML page there")
    verify = kinds.add_parser("verify", help="compute a report's figures and verdict again")
    verify.add_argument("report", type=Path, metavar="REPORT.json")
    for name, text in (
        ("handoff", "what a hand-off costs, against one co-located worker"),
        ("interference", "what prefill does to streams that decode beside it"),
        ("footprint", "time to start, memory and idle processor time of a deployment"),
    ):
        kind = kinds.add_parser(name, help=text)
        _model(kind)
        _json(kind)
        kind.add_argument("--repeats", type=positive, default=None, help="repeats per figure")
        if name == "interference":
            kind.add_argument("--long-prompt", type=positive, default=1500, help="tokens (1500)")
        if name == "handoff":
            kind.add_argument("--verify-kv", action="store_true", help="with checksums of the KV")


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=DEFAULT_MODEL,
        help=f"a model folder, a GGUF file or a hub name (default: {DEFAULT_MODEL})",
    )  # fmt: skip


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON on standard output")


def _workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is replayed")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--trace", type=Path, default=None, metavar="FILE",
        help="Azure or BurstGPT CSV, Mooncake JSONL, conversations as JSON, or one of our own",
    )  # fmt: skip
    source.add_argument(
        "--workload", default="mixed",
        help="short, long, mixed, rag, streams or chat (default: mixed)",
    )  # fmt: skip
    group.add_argument("--rate", type=float, default=None, help="requests per second")
    group.add_argument("--cv", type=float, default=1.0, help="of the gaps; 1: Poisson (default)")
    group.add_argument("--duration", type=float, default=None, help="seconds")
    group.add_argument(
        "--concurrency", type=positive, default=None, help="a closed loop of so many"
    )
    group.add_argument("--requests", type=positive, default=None, help="of a closed loop (100)")
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    group.add_argument("--window", type=_window, default=None, metavar="BEGIN:END", help="seconds")
    group.add_argument("--rate-scale", type=float, default=None, help="a trace, this much faster")
    group.add_argument("--length-scale", type=float, default=1.0, help="lengths times this")
    group.add_argument("--keep", type=float, default=None, help="this share of a trace's requests")
    group.add_argument(
        "--jitter", type=float, default=None, help="move arrivals by up to so many s"
    )


def _load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="an OpenAI-compatible server")
    parser.add_argument("--model", default=None, help="to ask for (default: the one it serves)")
    parser.add_argument("--vocabulary", type=positive, default=30_000, help="token ids below this")
    parser.add_argument("--salt", type=int, default=0, help="other tokens, the same lengths")
    parser.add_argument("--cores", type=_cores, default=(), help="to run on, such as 0,1")
    parser.add_argument("--out", type=Path, default=None, help="write every request's row there")
    _json(parser)
    _budgets(parser)
    _workload(parser)


def _budgets(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("latency budgets, in ms")
    for name, text in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl-p99", "a request's ITL p99")):
        group.add_argument(f"--{name}-ms", type=float, default=None, help=f"on {text}")


def _compare(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--quick", action="store_true", help="short replays: within 8 minutes")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder for report.html, report.json"
    )
    _json(parser)
    parser.add_argument(
        "--url", action="append", default=None, metavar="[NAME=]URL",
        help="twice: a co-located and a disaggregated deployment that are there already",
    )  # fmt: skip
    parser.add_argument("--rounds", type=positive, default=None, help="replays of each")
    parser.add_argument(
        "--utilisation", type=float, default=0.4,
        help="of the devices, where neither --rate nor --keep is given (default: 0.4)",
    )  # fmt: skip
    _budgets(parser)
    _workload(parser)
    group = parser.add_argument_group("architectures")
    group.add_argument("--devices", type=positive, default=None, help="to share the cores (2)")
    group.add_argument("--architectures", default=None, metavar="A,B,…", help="of which forms")
    group.add_argument("--client-cores", type=_cores, default=(), help="the load generator's own")
    group.add_argument("--engine", default="embedded", choices=["embedded", "vllm"])
    group.add_argument("--vllm-arguments", default="", metavar="ARGS", help="vLLM's own")
    group.add_argument("--dtype", default="bfloat16", help="default: bfloat16")
    group.add_argument("--kv-memory", type=positive, default=200, help="MiB per device (200)")
    group.add_argument("--transport", default="local", choices=["local", "tcp"])
    group.add_argument("--faults", default="", metavar="SPEC", help="of disaggregated workers")
    group.add_argument("--power-csv", type=Path, default=None, help="a meter's time_s,watts")
    group.add_argument("--no-recovery", action="store_true", help="do not kill a worker at the end")
