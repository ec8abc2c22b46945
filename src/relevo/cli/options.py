"""The command line's options, and what of them is handed on to workers."""

from __future__ import annotations

import argparse

from relevo import __version__
from relevo.cli.bench_options import add_benchmarks

_ENGINE_OPTIONS: tuple[tuple[str, type, object, str], ...] = (
    ("--dtype", str, "bfloat16", "bfloat16, float32 or float16"),
    ("--device", str, "cpu", "cpu, or cuda for mixed workers"),
    ("--kv-memory", int, 200, "MiB of KV pool per worker"),
    ("--page-tokens", int, 16, "tokens per KV page"),
    ("--step-tokens", int, 2048, "most tokens in one step; longer prompts go in chunks"),
    ("--max-running", int, 64, "most requests that a worker runs at once"),
    ("--local-prefill-tokens", int, 32, "prompts with no more left to compute are not handed off"),
)


def _handoff_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hand-offs")
    group.add_argument(
        "--verify-kv", action="store_true",
        help="check what arrives by checksums of what was sent; prefill again where they differ",
    )  # fmt: skip
    group.add_argument(
        "--hold-handoffs",
        action="store_true",
        help="verify, and let requests whose KV has landed wait for `relevo release`",
    )
    group.add_argument(
        "--faults", default="", metavar="SPEC",
        help="misbehave on purpose, to rehearse failures: seed=1,delay=2000 (of writes, in µs), "
        "rate=50 (of the link, in MB/s), slow=0.2 (share that steps take longer), per write "
        "error=0.01,stall=0.001,cut=0.0001,corrupt=0.001, per message between workers "
        "lose=0.01,repeat=0.01,late=0.05",
    )  # fmt: skip


def _engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine", default="embedded", choices=["embedded", "vllm"],
        help="vllm: needs vLLM beside Relevo, see docs/vllm.md (default: embedded)",
    )  # fmt: skip
    group.add_argument(
        "--vllm-arguments", default="", metavar="ARGS",
        help="vLLM's own, as on its command line, in one string",
    )  # fmt: skip
    for flag, kind, default, text in _ENGINE_OPTIONS:
        group.add_argument(flag, type=kind, default=default, help=f"{text} (default: {default})")


def worker_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """The options of engine and hand-offs as a worker's command line takes them."""
    arguments = ["--engine", options.engine]
    if options.vllm_arguments:
        arguments.append(f"--vllm-arguments={options.vllm_arguments}")
    for flag, *_ in _ENGINE_OPTIONS:
        value = getattr(options, flag.lstrip("-").replace("-", "_"))
        arguments += [flag, str(value)]
    if options.faults:
        arguments += ["--faults", options.faults]
    for flag in ("--verify-kv", "--hold-handoffs"):
        if getattr(options, flag.lstrip("-").replace("-", "_")):
            arguments.append(flag)
    return tuple(arguments)


def _model(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    text = "a model folder, a GGUF file, a hub name, or SmolLM2-135M-Instruct (the demo's)"
    if default is None:
        parser.add_argument("model", metavar="MODEL", help=text)
    else:
        parser.add_argument("--model", default=default, help=f"{text} (default: {default})")


def _transport(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport", default="local", choices=["local", "tcp"],
        help="how KV pages travel: shared memory, or libfabric over tcp (default: local)",
    )  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relevo",
        description="Serves LLMs with prefill and decode in separate workers, "
        "and measures whether that pays.",
    )
    parser.add_argument("--version", action="version", version=f"relevo {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _serve(commands.add_parser("serve", help="router and workers on this machine"))
    _worker(commands.add_parser("worker", help="one worker, for a router that runs elsewhere"))
    _router(commands.add_parser("router", help="the router alone"))
    _proxy(commands.add_parser("proxy", help="before `vllm serve` processes with our connector"))
    _url(commands.add_parser("handoffs", help="what --hold-handoffs keeps waiting"))
    release = commands.add_parser("release", help="let a held hand-off go on")
    release.add_argument("id", metavar="ID", help="as `relevo handoffs` lists it")
    _url(release)
    commands.add_parser("demo", help="three prompts through a deployment, with their timelines")
    _transport(commands.add_parser("doctor", help="what this machine offers and what is missing"))
    add_benchmarks(commands.add_parser("bench", help="benchmarks"))
    return parser


def _url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000",
        help="where the router listens (default: http://127.0.0.1:8000)",
    )  # fmt: skip


def _serve(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--prefill", type=int, default=None, help="prefill workers (default: 1)")
    parser.add_argument("--decode", type=int, default=None, help="decode workers (default: 1)")
    parser.add_argument("--mixed", type=int, default=0, help="co-located workers (default: 0)")
    _transport(parser)
    parser.add_argument("--host", default="127.0.0.1", help="HTTP address (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port (default: 8000)")
    _handoff_options(parser)
    _engine_options(parser)


def _worker(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--role", required=True, choices=["prefill", "decode", "mixed"])
    parser.add_argument("--router", required=True, help="the router's control endpoint")
    parser.add_argument("--name", required=True, help="a name that no other worker has")
    parser.add_argument("--model-name", default=None, help="what requests ask for")
    parser.add_argument("--host", default="127.0.0.1", help="address that others reach this at")
    parser.add_argument("--cores", default="", help="cores to run on, such as 0,1 (default: all)")
    _transport(parser)
    _handoff_options(parser)
    _engine_options(parser)


def _proxy(parser: argparse.ArgumentParser) -> None:
    for role in ("prefill", "decode"):
        parser.add_argument(
            f"--{role}", nargs="+", required=True, metavar="URL", help=f"servers that {role}"
        )
    parser.add_argument("--host", default="127.0.0.1", help="HTTP address (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port (default: 8000)")


def _router(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--model-name", default=None, help="what requests ask for")
    parser.add_argument("--host", default="127.0.0.1", help="HTTP address (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port (default: 8000)")
    parser.add_argument(
        "--control", default="tcp://127.0.0.1:*", help="where workers register (default: any port)"
    )
