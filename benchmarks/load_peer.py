"""Our load generator beside guidellm: the same endpoint, the same rate and lengths, in turn.

    python -m venv peer && peer/bin/pip install guidellm
    .venv/bin/python benchmarks/load_peer.py peer/bin/guidellm [--rounds N]

Requests of 128 tokens arrive evenly and are answered with 32, so that both send the same load: as
much as the machine's pace allows without queueing. The server is one worker on one core and the
generators run on another, so that what they compute themselves cannot slow what they measure.
Medians over all requests of all rounds, and guidellm's as a ratio to ours.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from relevo.bench.load import Target
from relevo.bench.load_process import run_load
from relevo.bench.metrics import SAMPLES
from relevo.bench.trace import Arrival, Segment, Trace
from relevo.cli.export import huggingface_folder
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.local import DeploymentConfig, LocalDeployment
from relevo.launch.model_source import resolve_model

PROMPT, ANSWER, REQUESTS = 128, 32, 30
IN_FLIGHT = 0.8  # requests at a time, on average
WARMING = 5
FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True)
class Load:
    """`core`: the one the generators run on; `rate`: requests a second."""

    target: Target
    core: int
    rate: float


def ours(load: Load, requests: int, salt: int) -> dict[str, list[float]]:
    arrivals = tuple(Arrival(i / load.rate, (Segment(i, PROMPT),), ANSWER) for i in range(requests))
    run = run_load(load.target, Trace("even", arrivals, requests / load.rate), (load.core,), salt)
    return {name: SAMPLES[name](run.rows) for name in FIGURES}


def theirs(program: Path, load: Load, tokenizer: Path, round_: int) -> dict[str, list[float]]:
    target = load.target
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        done = subprocess.run(
            ["taskset", "-c", str(load.core), program, "run", "--disable-console",
             "--backend", f"kind=openai_http,target={target.url},model={target.model},"
             "request_format=/v1/completions",
             "--profile", f"kind=constant,rate={load.rate}",
             "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
             "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}",
             "--seed", f"kind=static,value={round_}",
             "--output", f"kind=json,path={out}"],
            check=False, capture_output=True, text=True, cwd=folder, timeout=300,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"guidellm: {done.stderr}")
        report = json.loads(out.read_text())
    requests = report["benchmarks"][0]["requests"]["successful"]
    return {
        "ttft_ms": [r["time_to_first_token_ms"] for r in requests],
        "tpot_ms": [r["inter_token_latency_ms"] for r in requests],  # their name for it
        "e2e_ms": [r["request_latency"] * 1e3 for r in requests],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("guidellm", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    model = resolve_model(DEMO_MODEL)
    tokenizer = huggingface_folder(model)
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "guidellm": {}}
    serving, generating = sorted(os.sched_getaffinity(0))[:2]
    config = DeploymentConfig(model=model, prefill=0, decode=0, mixed=1, worker_cores=((serving,),))
    with LocalDeployment(config) as deployment:
        target = Target(deployment.url, model.name, 49_000)
        warm = ours(Load(target, generating, 0.2), WARMING, options.rounds)
        rate = IN_FLIGHT / statistics.median(warm["e2e_ms"]) * 1e3
        load = Load(target, generating, round(rate, 2))
        print(f"{load.rate} requests a second")
        for round_ in range(options.rounds):
            results = {
                "ours": ours(load, REQUESTS, round_),
                "guidellm": theirs(options.guidellm.resolve(), load, tokenizer, round_),
            }
            for who, samples in results.items():
                for name, values in samples.items():
                    found[who].setdefault(name, []).extend(values)
    print(f"{'p50':10}{'ours':>10}{'guidellm':>10}{'ratio':>8}")
    for name in FIGURES:
        a, b = (statistics.median(found[who][name]) for who in ("ours", "guidellm"))
        print(f"{name:10}{a:10.2f}{b:10.2f}{b / a:8.3f}")


if __name__ == "__main__":
    main()
