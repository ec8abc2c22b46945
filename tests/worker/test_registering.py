"""A worker's control thread against a router played by the test, over real sockets."""

import threading
import time

import pytest
import zmq

from relevo.types import Role
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Heartbeat,
    Load,
    Register,
    RegisterAgain,
    Registered,
)
from relevo.wire.sockets import Listener
from relevo.worker import control, handoff_loop
from relevo.worker.control import Control


class HungHost:
    """Drops what it runs only once the test lets it."""

    def __init__(self):
        self.load = Load()
        self.counters = {}
        self.asked_to_drop = []

    def abort_all(self, then):
        self.asked_to_drop.append(then)


@pytest.fixture
def joined(monkeypatch):
    """(router, host) of a worker that has registered once."""
    monkeypatch.setattr(control, "REGISTER_S", 0.05)
    monkeypatch.setattr(handoff_loop, "HEARTBEAT_S", 0.05)
    context = zmq.Context()
    router = Listener(context, "tcp://127.0.0.1:*", "router")
    host = HungHost()
    register = Register(
        worker="w", incarnation=1, version=PROTOCOL_VERSION, role=Role.MIXED, model="m", pages=8,
        page_tokens=16, max_context=128, vocabulary=64, credit_tokens=64, local_prefill_tokens=32,
        pid=1,
    )  # fmt: skip
    worker = Control(
        context=context, router=router.endpoint, register=register, host=host, transfer=None,
        listener=None, faults=None, on_registered=lambda: None, on_lost=lambda why: None,
    )  # fmt: skip
    worker.attach(Heartbeat, None, None)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    yield Router(router), host
    worker.stop()
    thread.join(10)
    context.destroy(linger=0)


class Router:
    def __init__(self, listener):
        self._listener = listener
        self.route = None
        self.registrations = 0

    def hear(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for route, message in self._listener.receive():
                self.route = route
                if isinstance(message, Register):
                    self.registrations += 1
                    self._listener.send(route, Registered())
            time.sleep(0.005)

    def give_up(self):
        self._listener.send(self.route, RegisterAgain())


def test_a_worker_that_hung_registers_once_when_it_goes_on(joined):
    router, host = joined
    router.hear(0.5)
    assert router.registrations == 1
    for _ in range(10):  # as often as the worker's heartbeats come
        router.give_up()
        router.hear(0.1)
    assert router.registrations == 1, "while it hangs it is not taken back"
    for go_on in host.asked_to_drop:
        go_on()
    router.hear(1)
    assert router.registrations == 2


def test_a_worker_that_is_given_up_again_registers_again(joined):
    router, host = joined
    router.hear(0.5)
    for times in (2, 3):
        router.give_up()
        router.hear(0.3)
        host.asked_to_drop.pop()()
        router.hear(0.5)
        assert router.registrations == times
