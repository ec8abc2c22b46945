"""`relevo demo`: real prompts through a prefill and a decode worker, each answer checked token for
token against a co-located worker."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from relevo.cli.timeline_view import draw_timeline
from relevo.errors import RelevoError
from relevo.launch.cores import own_cores
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.local import DeploymentConfig, LocalDeployment
from relevo.launch.model_source import resolve_model

ANSWER_TOKENS = 48
DEADLINE_S = 120.0
_RUNNERS = ("Ana", "Bela", "Caro", "Dani", "Edu", "Fina")


def _logbook() -> str:
    """A long document to ask about."""
    lines = [
        f"Lap {lap}: {_RUNNERS[lap % 6]} took the baton from {_RUNNERS[(lap - 1) % 6]} and ran "
        f"{lap * 37 % 60 + 300} metres in {lap * 13 % 20 + 50} seconds."
        for lap in range(1, 43)
    ]
    return "Logbook of a relay race.\n" + "\n".join(lines)


PROMPTS = (
    "What is the capital of France? Answer in one sentence.",
    "In a relay race, a baton is handed from one runner to the next while both are running at full "
    "speed. Explain in two sentences why a relay team practises handing over the baton.",
    _logbook() + "\n\nSummarise this logbook in one sentence.",
)


def run_demo() -> int:
    """0 if every answer equals its co-located run."""
    model = resolve_model(DEMO_MODEL)
    print(f"Starting one prefill and one decode worker for {model.name} ...", flush=True)
    with LocalDeployment(DeploymentConfig(model=model)) as split:
        split_answers = [_show(split.url, model.name, prompt) for prompt in PROMPTS]
    print("Starting one co-located worker on the prefill worker's cores, to check ...", flush=True)
    config = DeploymentConfig(
        model=model, prefill=0, decode=0, mixed=1, worker_cores=(own_cores(2)[0],)
    )
    with LocalDeployment(config) as mixed:
        expected = [
            [token for chunk in _chat(mixed.url, model.name, prompt) for token in _tokens(chunk)]
            for prompt in PROMPTS
        ]
    equal = [ours == theirs for ours, theirs in zip(split_answers, expected, strict=True)]
    for number, (same, tokens) in enumerate(zip(equal, split_answers, strict=True), start=1):
        verdict = "equal" if same else "DIFFERENT"
        print(f"answer {number}: {len(tokens)} tokens, {verdict} to the co-located run")
    return 0 if all(equal) else 1


def _show(url: str, model: str, prompt: str) -> list[int]:
    """Streams an answer to the terminal and draws its timeline. Returns its tokens."""
    shown = prompt if len(prompt) < 200 else f"{prompt[:70]} [...] {prompt[-40:].strip()}"
    print(f"\n> {shown}\n", flush=True)
    tokens: list[int] = []
    id = ""
    for chunk in _chat(url, model, prompt):
        id = chunk["id"]
        tokens += _tokens(chunk)
        sys.stdout.write(chunk["choices"][0]["delta"].get("content") or "")
        sys.stdout.flush()
    print("\n")
    print(draw_timeline(_timeline(url, id)), flush=True)
    return tokens


def _tokens(chunk: dict[str, Any]) -> list[int]:
    ids: list[int] = chunk["choices"][0]["token_ids"]
    return ids


def _chat(url: str, model: str, prompt: str) -> Iterator[dict[str, Any]]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        for line in response:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RelevoError(chunk["error"]["message"])
                yield chunk


def _timeline(url: str, id: str) -> dict[str, Any]:
    """Waits a moment for the prefill worker's last words."""
    deadline = time.monotonic() + 2.0
    while True:
        with urllib.request.urlopen(f"{url}/v1/requests/{id}/timeline", timeout=5) as response:
            timeline: dict[str, Any] = json.load(response)
        if timeline["figures"]["bytes"] or time.monotonic() > deadline:
            return timeline
        time.sleep(0.05)
