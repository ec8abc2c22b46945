"""Our load generator beside guidellm: the same endpoint, the same rate and lengths, in turn.

    python -m venv peer && peer/bin/pip install guidellm
    .venv/bin/python benchmarks/load_peer.py peer/bin/guidellm [--rounds N]

Requests of 128 tokens arrive evenly and are answered with 32, so that both send the same load.
Medians over all requests of all rounds, and guidellm's as a ratio to ours.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from relevo.bench.load import Target
from relevo.bench.load_process import run_load
from relevo.bench.metrics import SAMPLES
from relevo.bench.trace import Arrival, Segment, Trace
from relevo.cli.export import huggingface_folder
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.local import DeploymentConfig, LocalDeployment
from relevo.launch.model_source import resolve_model

PROMPT, ANSWER, RATE, SECONDS = 128, 32, 1.5, 30
FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")


def ours(target: Target, round_: int) -> dict[str, list[float]]:
    count = int(RATE * SECONDS)
    arrivals = tuple(Arrival(i / RATE, (Segment(i, PROMPT),), ANSWER) for i in range(count))
    run = run_load(target, Trace("even", arrivals, float(SECONDS)), (), round_)
    return {name: SAMPLES[name](run.rows) for name in FIGURES}


def theirs(program: Path, target: Target, tokenizer: Path, round_: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        done = subprocess.run(
            [program, "run", "--disable-console",
             "--backend", f"kind=openai_http,target={target.url},model={target.model},"
             "request_format=/v1/completions",
             "--profile", f"kind=constant,rate={RATE}",
             "--constraint", f"kind=max_requests,count={int(RATE * SECONDS)}",
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
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "guidellm": {}}
    with LocalDeployment(DeploymentConfig(model=model)) as deployment:
        target = Target(deployment.url, model.name, 49_000)
        for round_ in range(options.rounds):
            results = {
                "ours": ours(target, round_),
                "guidellm": theirs(
                    options.guidellm.resolve(), target, huggingface_folder(model), round_
                ),
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
