"""The prefill side of hand-offs under vLLM, without vLLM, over a real transfer engine: its two
halves meet in either order, and blocks are kept for as long as they are read."""

import threading
import time

import numpy as np
import pytest

from relevo.messenger.host import PrefillJob
from relevo.messenger.slots import Slot
from relevo.transfer.engine import TransferEvent
from relevo.wire.messages import Cancel, PrefillRequest
from relevo.worker import vllm_sending
from relevo.worker.vllm_plan import Compute, Ended, StepPlan
from relevo.worker.vllm_sending import SendingHost
from tests.transfer.conftest import DEADLINE_S, LAYERS, Pair

Kind = TransferEvent.Kind
TOKENS = tuple(range(10))  # pages of 4: two full ones and a half
BLOCKS = (20, 21, 22)
TARGET = (5, 6, 7)


class Sender:
    def __init__(self):
        self.pair = Pair("local")
        self.pair.source.pool[:] = np.random.default_rng(1).integers(
            0, 256, len(self.pair.source.pool), dtype=np.uint8
        )
        self.abandoned, self.told = [], []
        self.host = SendingHost(
            worker="p", transfer=self.pair.source.engine, page_tokens=4, layers=LAYERS,
            max_tokens=100, abandon=lambda *what: self.abandoned.append(what),
            note=lambda *what: None, tell=self.told.append,
        )  # fmt: skip
        self.pair.target.engine.arm(3, 0, LAYERS * len(TARGET))

    def job(self, handoff=1, first_page=0):
        """As the messenger starts one."""
        self.pair.source.engine.open_handoff(handoff)
        target = TARGET[first_page:]
        job = PrefillJob(handoff, self.pair.link, "r", TOKENS, first_page, target, Slot(3, 0))
        self.host.start(job)

    def begin(self, computed, blocks=BLOCKS, **plan):
        compute = (Compute(1, "s", computed, tuple(blocks)),)
        self.host.begin(StepPlan(compute=compute, **plan))

    def layers(self, count=LAYERS):
        for _ in range(count):
            self.host.layer()

    def step(self, computed):
        self.begin(computed)
        self.layers()
        self.host.end()

    def end_request(self, computed=True):
        self.host.begin(StepPlan(ended=(Ended(1, "s", computed, held=True),), empty=True))
        self.host.end()

    def released(self):
        """As the messenger does once every write is complete."""
        self.pair.source.wait(Kind.PUSHED, handoff=1, last=True)
        self.host.release(1)

    def counted(self, parts):
        deadline = time.monotonic() + DEADLINE_S
        while self.pair.target.engine.counted(3) < parts:
            assert time.monotonic() < deadline, self.pair.target.engine.counted(3)
            time.sleep(0.001)
        time.sleep(0.03)
        assert self.pair.target.engine.counted(3) == parts

    def landed(self):
        self.pair.target.counter()
        for layer in range(LAYERS):
            for block, page in zip(BLOCKS, TARGET, strict=True):
                np.testing.assert_array_equal(
                    self.pair.target.page(layer, page), self.pair.source.page(layer, block)
                )


@pytest.fixture
def sender():
    sender = Sender()
    yield sender
    sender.pair.stop()


def test_a_job_that_comes_first_is_pushed_layer_by_layer(sender):
    sender.job()
    sender.begin(10)
    sender.layers(1)
    sender.counted(len(TARGET))
    sender.layers(2)
    sender.host.end()
    sender.landed()


def test_a_job_that_comes_in_mid_step_joins_it(sender):
    sender.begin(10)
    sender.layers(2)
    sender.job()
    sender.counted(2 * len(TARGET))
    sender.layers(1)
    sender.host.end()
    sender.landed()


def test_a_job_that_comes_after_the_request_s_end_needs_no_step(sender):
    sender.step(10)
    sender.end_request()
    assert sender.host.sent() == set(), "its blocks are kept"
    sender.job()
    sender.landed()
    sender.released()
    assert sender.host.sent() == {"s"}
    assert sender.host.sent() == set()


def test_chunks_push_what_they_fill(sender):
    sender.job()
    sender.step(6)
    sender.counted(LAYERS)
    sender.step(8)
    sender.counted(2 * LAYERS)
    sender.step(10)
    sender.landed()


def test_a_job_in_mid_step_gets_what_earlier_chunks_filled_at_once(sender):
    sender.step(8)
    sender.begin(10)
    sender.job()
    sender.counted(2 * LAYERS)
    sender.layers()
    sender.host.end()
    sender.landed()


def test_pages_that_the_decode_side_has_are_left_out(sender):
    sender.pair.target.engine.disarm(3)
    sender.pair.target.engine.arm(3, 0, LAYERS)
    sender.job(first_page=2)
    sender.step(10)
    sender.pair.target.counter()
    assert not sender.pair.target.page(0, TARGET[0]).any()


def test_cached_blocks_wait_for_the_layers_of_the_first_step(sender):
    """They may be blocks that this very step computes for another request."""
    sender.job()
    sender.begin(10)  # of which vLLM has found 8 in its cache
    sender.counted(0)
    sender.layers()
    sender.host.end()
    sender.landed()


def test_a_pass_without_our_hooks_pushes_at_its_end(sender):
    sender.job()
    sender.begin(10)
    sender.host.end()
    sender.landed()


def test_blocks_are_sent_once_both_have_ended(sender):
    sender.job()
    sender.step(10)
    sender.released()
    assert sender.host.sent() == set(), "its request still runs"
    sender.end_request()
    assert sender.host.sent() == {"s"}
    assert not sender.host.waiting


def test_a_preempted_request_s_blocks_drain_before_they_are_overwritten(sender):
    sender.job()
    sender.step(6)
    drained = []

    def messenger():
        while not sender.abandoned:
            time.sleep(0.005)
        sender.pair.source.engine.withdraw(1)
        sender.pair.source.wait(Kind.DRAINED, handoff=1)
        drained.append(time.monotonic())
        sender.host.release(1)

    thread = threading.Thread(target=messenger)
    thread.start()
    sender.host.preempt(["s"])
    thread.join(DEADLINE_S)
    assert drained
    sender.step(10)  # it resumes, for nobody
    sender.end_request()
    assert sender.host.sent() == {"s"}


def test_one_that_nobody_reads_yet_may_be_preempted_at_once(sender):
    sender.step(6)
    sender.host.preempt(["s"])
    assert not sender.abandoned
    sender.job()
    sender.counted(0)
    sender.step(10)
    sender.landed()


def test_a_request_that_ends_half_way_gives_its_job_up(sender):
    sender.job()
    sender.step(6)
    sender.end_request(computed=False)
    assert sender.abandoned == [(1, "its request has ended")]
    assert sender.host.sent() == set()
    sender.host.stop(1)
    sender.host.release(1)
    assert sender.host.sent() == {"s"}


def test_a_job_for_a_prompt_that_is_gone_is_refused(sender):
    sender.step(6)
    sender.end_request(computed=False)
    assert sender.host.sent() == {"s"}
    job = PrefillJob(1, sender.pair.link, "r", TOKENS, 0, TARGET, Slot(3, 0))
    assert "gone" in sender.host.refuses(job)


def test_neither_half_waits_for_ever(sender, monkeypatch):
    monkeypatch.setattr(vllm_sending, "MEET_S", 0.05)
    monkeypatch.setattr(vllm_sending, "HOLD_S", 0.05)
    sender.step(10)
    sender.end_request()
    sender.job(handoff=2)
    assert sender.host.sent() == set()
    sender.host.tick(time.monotonic() + 0.1)
    assert sender.host.sent() == {"s"}
    ((handoff, why),) = sender.abandoned
    assert handoff == 2
    assert "no request" in why


def test_whoever_runs_the_engine_hears_of_jobs_without_a_request(sender):
    sender.job()
    (told,) = sender.told
    assert isinstance(told, PrefillRequest)
    assert (told.handoff, told.tokens) == (1, TOKENS)
    sender.host.stop(1)
    assert sender.told[1:] == [Cancel(1)]
