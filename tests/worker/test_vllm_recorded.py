"""The vLLM connector's half in the scheduler against what a real vLLM 0.32 said to it: chunked
prefill, prefix hits, several choices, an abort, a preemption (tests/vllm/recording.py)."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from relevo.worker.vllm_scheduler import SchedulerHalf

LINES = Path(__file__).with_name("vllm_scheduler.jsonl").read_text().splitlines()
RECORDED = [json.loads(line) for line in LINES]
BLOCK = 128


def plain(value):
    """As JSON has it."""
    return json.loads(json.dumps(value))


class Replay:
    def __init__(self):
        self._half = SchedulerHalf(BLOCK, local_prefill_tokens=0)
        self._requests = {}

    def call(self, method, arguments):
        if method == "arrived":
            request = SimpleNamespace(**arguments[0])
            self._requests[request.request_id] = request
            return self._half.arrived(request)
        if method == "plan":
            scheduled, computed, blocks, preempted = arguments
            return asdict(self._half.plan(scheduled, computed, blocks.__getitem__, preempted))
        if method in ("received", "sent"):
            return getattr(self._half, method)(*arguments)
        request, *rest = arguments
        known = self._requests.get(request, SimpleNamespace(request_id=request))
        return getattr(self._half, method)(known, *rest)


@pytest.mark.parametrize("server", [0, 1])
def test_every_answer_is_what_it_was(server):
    replay = Replay()
    for number, line in enumerate(RECORDED):
        if line["server"] == server:
            answer = plain(replay.call(line["method"], line["arguments"]))
            assert answer == line["result"], f"line {number + 1}: {line['method']}"


def test_the_recording_has_one_of_each():
    plans = [line["result"] for line in RECORDED if line["method"] == "plan"]
    for what in ("receive", "aborted", "compute", "preempted", "ended", "queued"):
        assert any(plan[what] for plan in plans), what
    assert any(line["result"] == [None, False] for line in RECORDED), "one that waits for another"
    assert any(line["arguments"][1] for line in RECORDED if line["method"] == "received"), "a loss"
