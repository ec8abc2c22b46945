"""A worker that answers but computes no more. Its control thread goes on and says so: it is the
steps that stand still, and they alone tell."""

import contextlib
import ctypes
import os
import threading
import time

import pytest

from relevo.wire.liveness import HUNG_S

from .conftest import EXACT, deployed, open_handoffs, random_prompt

PROMPT = random_prompt(1500, 88)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_ANY_THREAD = 0x40000000  # __WALL
libc = ctypes.CDLL(None, use_errno=True)


def ptrace(request, thread):
    if libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        if request == PTRACE_SEIZE:
            pytest.skip(f"one thread of a process cannot be stopped here: {os.strerror(error)}")
        raise OSError(error, os.strerror(error))


@contextlib.contextmanager
def stopped(thread):
    """This one thread of another process stands still; SIGSTOP would stop them all."""
    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    os.waitpid(thread, WAIT_ANY_THREAD)
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH, thread)


def still_answers(api, name):
    """Not where the thread was stopped with the interpreter's lock in its hands."""
    time.sleep(2.5)
    return api.loads()[name]["silent_s"] < 2


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_hung_worker_s_requests_are_answered_without_it(smollm, role):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        expected, _ = api.tokens(PROMPT, 300)
    with deployed(smollm, prefill=1, decode=2, arguments=EXACT) as api:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(api.tokens(PROMPT, 300)))
        thread.start()
        name = until_busy(api, role)
        pid = api.loads()[name]["pid"]  # the engine loop is the main thread
        for _ in range(20):
            with stopped(pid):
                if not still_answers(api, name):
                    continue
                assert not answers, "it was stopped too late"
                begin = time.monotonic()
                while name in api.loads():
                    assert api.loads()[name]["silent_s"] < 5, "it does answer"
                    assert time.monotonic() < begin + HUNG_S + 30
                    time.sleep(0.5)
                thread.join(60)
                assert answers[0][0] == expected
                assert time.monotonic() > begin + HUNG_S - 10, "it was lost for another reason"
            break
        else:
            pytest.fail("the thread never stood still outside the interpreter's lock")
        until_back(api, name)
        assert api.tokens(PROMPT, 20)[0] == expected[:20]
        api.wait_idle()


def until_busy(api, role):
    """The name of the worker of this role that has the request."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for name, worker in api.loads().items():
            load = worker["load"]
            if worker["role"] == role and (
                load["running"] if role == "decode" else open_handoffs(worker)
            ):
                return name
        time.sleep(0.01)
    raise AssertionError("the request does not run")


def until_back(api, name):
    deadline = time.monotonic() + 30
    while name not in api.loads():
        assert time.monotonic() < deadline, "it goes on and is not taken back"
        time.sleep(0.2)
