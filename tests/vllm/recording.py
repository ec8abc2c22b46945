"""What vLLM's scheduler says to the connector, written down, so that the default tests can say it
again without vLLM.

`.venv-vllm/bin/python -m tests.vllm.recording` makes tests/worker/vllm_scheduler.jsonl anew.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from relevo.worker.vllm_connector import RelevoConnector

RECORDED = Path(__file__).parent.parent / "worker" / "vllm_scheduler.jsonl"
PATH = "RELEVO_RECORD"


class Recorder:
    """Stands before a SchedulerHalf: every call, and what came of it, is a line."""

    def __init__(self, half, path):
        self._half = half
        self._path = Path(f"{path}.{os.getpid()}")

    def _line(self, method, arguments, result):
        line = {"method": method, "arguments": arguments, "result": result}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    def arrived(self, request):
        known = {
            "request_id": request.request_id,
            "prompt_token_ids": list(request.prompt_token_ids),
            "kv_transfer_params": request.kv_transfer_params,
        }
        self._half.arrived(request)
        self._line("arrived", [known], None)

    def matched(self, request, computed):
        result = self._half.matched(request, computed)
        self._line("matched", [request.request_id, computed], list(result))
        return result

    def allocated(self, request, pages, external):
        self._half.allocated(request, pages, external)
        self._line("allocated", [request.request_id, list(pages), external], None)

    def plan(self, scheduled, computed, pages, preempted):
        plan = self._half.plan(scheduled, computed, pages, preempted)
        result = asdict(plan)
        if any(value for key, value in result.items() if key != "empty") or scheduled:
            blocks = {request: list(pages(request)) for request in scheduled}
            arguments = [dict(scheduled), dict(computed), blocks, sorted(preempted)]
            self._line("plan", arguments, result)
        return plan

    def received(self, requests, failed):
        self._half.received(requests, failed)
        if requests:
            self._line("received", [sorted(requests), sorted(failed)], None)

    def sent(self, requests):
        self._half.sent(requests)
        if requests:
            self._line("sent", [sorted(requests)], None)

    def finished(self, request):
        return self._line("finished", [request.request_id], self._half.finished(request))


class RecordingConnector(RelevoConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if hasattr(self, "_scheduler"):
            self._scheduler = Recorder(self._scheduler, os.environ[PATH])


def main():
    from relevo.cli.export import huggingface_folder
    from relevo.launch.demo_model import DEMO_MODEL
    from relevo.launch.model_source import resolve_model

    from . import conftest as vllm

    folder = huggingface_folder(resolve_model(DEMO_MODEL))
    with tempfile.TemporaryDirectory() as name:
        os.environ[PATH] = f"{name}/record"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        vllm.CONNECTOR |= {
            "kv_connector": "RecordingConnector", "kv_connector_module_path": __spec__.name,
        }  # fmt: skip
        arguments = (
            "--max-num-batched-tokens", "256", "--num-gpu-blocks-override", "21",
            "--max-model-len", "2048",
        )  # fmt: skip
        with vllm.pair(folder, Path(name), *arguments) as (prefill, decode, proxy):
            drive(vllm, prefill, decode, proxy)
        lines = [
            {"server": index} | json.loads(line)
            for index, file in enumerate(sorted(Path(name).glob("record.*")))
            for line in file.read_text().splitlines()
        ]
    RECORDED.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} calls", file=sys.stderr)


def drive(vllm, prefill, decode, proxy):
    """One of each: short, chunked, prefix hits, several choices, aborted, preempted."""
    for tokens in (1, 2, 130, 600):
        proxy.tokens(vllm.random_prompt(tokens, tokens), 2)
    proxy.tokens([*vllm.random_prompt(600, 600), 5, 6, 7], 2)
    proxy.tokens(vllm.random_prompt(200, 1), 2, n=2, temperature=1, top_k=1)
    body = {"model": vllm.MODEL, "prompt": vllm.random_prompt(1500, 2), "max_tokens": 2}
    connection = http.client.HTTPConnection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    connection.request("POST", "/v1/completions", json.dumps(body))
    time.sleep(0.7)
    connection.close()
    prefill.wait_idle()
    growing = threading.Thread(target=prefill.tokens, args=(vllm.random_prompt(1021, 3), 60))
    growing.start()
    while not prefill.metric("vllm:num_requests_running"):
        time.sleep(0.05)
    proxy.tokens(vllm.random_prompt(1500, 4), 2)
    growing.join()
    prefill.wait_idle()
    decode.wait_idle()


if __name__ == "__main__":
    main()
