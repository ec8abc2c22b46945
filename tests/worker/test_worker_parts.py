import threading
import time

from relevo.engine.sequence import Sequence
from relevo.messenger.host import PrefillJob
from relevo.messenger.slots import Slot
from relevo.worker.inbox import Inbox
from relevo.worker.jobs import JobProgress


def test_calls_run_in_order_on_the_owner():
    inbox = Inbox()
    seen = []
    for i in range(3):
        inbox.post(seen.append, i)
    inbox.run_all()
    assert seen == [0, 1, 2]


def test_a_post_from_another_thread_ends_the_wait():
    inbox = Inbox()
    threading.Timer(0.05, inbox.post, [print]).start()
    begin = time.monotonic()
    inbox.wait(5.0)
    assert time.monotonic() - begin < 2.0


def test_a_signal_whose_call_was_taken_already_does_not_end_every_later_wait():
    """A post between `append` and its signal: the owner takes the call, the signal comes after.
    Left standing, it made the control thread spin and steal the core from the forward pass."""
    inbox = Inbox()
    inbox.post(lambda: inbox.post(lambda: None))  # taken in the same round, signal left over
    inbox.run_all()
    inbox.run_all()
    begin = time.monotonic()
    inbox.wait(0.2)
    assert time.monotonic() - begin > 0.15


def progress(tokens, *, first_page=0, reused=0, page_tokens=16):
    job = PrefillJob(
        1, 2, "r", tuple(range(tokens)), first_page, tuple(range(100, 200)), Slot(0, 0)
    )
    sequence = Sequence("s", list(range(tokens)), None)
    sequence.pages = list(range(50, 80))
    sequence.reused = reused
    return JobProgress(job, sequence)


class Pushed:
    """What a push says, readable."""

    def __init__(self, monkeypatch):
        self.calls = []

        def push(job, ready, layered, *, last):
            self.calls.append((sorted(ready), sorted(layered), last))
            return self

        monkeypatch.setattr(PrefillJob, "push", push)


def test_a_page_is_pushed_in_the_step_that_fills_it_or_ends_the_prompt(monkeypatch):
    pushed = Pushed(monkeypatch)
    state = progress(40)
    state.push_for(10, 16)
    state.push_for(20, 16)
    state.push_for(40, 16)
    assert pushed.calls == [([], [0], False), ([], [1, 2], True)]


def test_pages_from_the_own_prefix_cache_go_in_the_first_step(monkeypatch):
    pushed = Pushed(monkeypatch)
    state = progress(70, reused=3)
    state.push_for(60, 16)
    state.push_for(70, 16)
    assert pushed.calls == [([0, 1, 2], [], False), ([], [3, 4], True)]


def test_a_prompt_that_is_cached_whole_is_pushed_without_a_forward_pass(monkeypatch):
    pushed = Pushed(monkeypatch)
    progress(48, reused=3).push_for(48, 16)
    assert pushed.calls == [([0, 1, 2], [], True)]


def test_pages_that_the_decoder_has_are_not_sent():
    job = PrefillJob(1, 2, "r", tuple(range(48)), 2, (7,), Slot(0, 0))
    pairs = job._pairs({0: 50, 1: 51, 2: 52})
    assert [(pair.source, pair.destination) for pair in pairs] == [(52, 7)]
