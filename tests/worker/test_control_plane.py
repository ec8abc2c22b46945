"""Both sides of the messenger over real sockets and a real transfer engine, against peers that
say what they should not."""

import threading
import time

import msgspec
import pytest
import zmq

from relevo.kv.layout import embedded_layout
from relevo.kv.shards import heads_of_rank
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.wire.codec import decode, encode
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    CancelAck,
    Heartbeat,
    LinkOpened,
    OpenLink,
    PrefillRequest,
    Refused,
    Rejected,
)
from relevo.wire.sockets import Connection, Listener

DEADLINE_S = 10
LAYOUT = embedded_layout(
    layers=2, pages=8, page_tokens=4, heads=heads_of_rank(0, 1, 2), head_dim=8, dtype="x",
    dtype_bytes=2,
)  # fmt: skip


class Host:
    """Takes every job and computes none."""

    def __init__(self):
        self.calls = []

    def refuses(self, job):
        return None

    def start(self, job):
        self.calls.append(("start", job.handoff))

    def stop(self, handoff):
        self.calls.append(("stop", handoff))

    def release(self, handoff):
        self.calls.append(("release", handoff))

    def pages(self, handoff):
        return [0, 1]


class Prefill:
    """A prefill side on a thread of its own, as the control thread runs it."""

    def __init__(self, context):
        self.host = Host()
        self.transfer = TransferEngine("local")
        self.transfer.allocate("pool", LAYOUT.bytes)
        self.transfer.start()
        self.listener = Listener(context, "tcp://127.0.0.1:*", "host")
        self.side = PrefillSide(
            worker="p", model="m", layout=LAYOUT, transfer=self.transfer, host=self.host,
            send=self.listener.send, beat=Heartbeat,
        )  # fmt: skip
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stopping.is_set():
            for event in self.transfer.poll_events():
                self.side.transfer_event(event)
            for route, message in self.listener.receive():
                self.side.handle(route, message)
            time.sleep(0.001)

    def stop(self):
        self._stopping.set()
        self._thread.join()
        self.transfer.stop()
        self.listener.close()


class Decoder:
    """The other end, played by the test."""

    def __init__(self, context, endpoint):
        self.transfer = TransferEngine("local")
        self.transfer.allocate("pool", LAYOUT.bytes)
        self.transfer.start()
        self.connection = Connection(context, endpoint)
        self.link = 0

    def ask(self, message):
        self.connection.send(message)
        return self.hear()

    def hear(self):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            messages = self.connection.receive()
            if messages:
                assert len(messages) == 1, messages
                return messages[0]
            time.sleep(0.001)
        raise AssertionError("no answer")

    def open(self, **changes):
        self.link = self.transfer.expect_link()
        message = OpenLink(
            "d", PROTOCOL_VERSION, "m", self.link, "local", self.transfer.address(),
            msgspec.msgpack.encode(LAYOUT),
        )  # fmt: skip
        return self.ask(msgspec.structs.replace(message, **changes))

    def request(self, handoff=1, **changes):
        message = PrefillRequest(handoff, self.link, "r", (1, 2, 3, 4, 5), 0, (6, 7), 3, 0)
        return msgspec.structs.replace(message, **changes)

    def stop(self):
        self.transfer.stop()
        self.connection.close()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def prefill(context):
    prefill = Prefill(context)
    yield prefill
    prefill.stop()


@pytest.fixture
def decoder(context, prefill):
    decoder = Decoder(context, prefill.listener.endpoint)
    yield decoder
    decoder.stop()


def test_a_link_opens_and_a_request_is_accepted_once(prefill, decoder):
    assert decoder.open() == LinkOpened(decoder.link)
    assert decoder.ask(decoder.request()) == Accepted(1)
    assert decoder.ask(decoder.request()) == Accepted(1)
    assert decoder.ask(Cancel(1)) == CancelAck(1)
    assert prefill.host.calls == [("start", 1), ("stop", 1), ("release", 1)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 99}, "protocol version"),
        ({"model": "other"}, "model: prefill worker has m, decode worker other"),
        ({"driver": "tcp"}, "transport"),
        ({"layout": b"\x00garbage"}, "layout"),
        ({"layout": msgspec.msgpack.encode(msgspec.structs.replace(LAYOUT, groups=()))}, "groups"),
        ({"address": b"nowhere"}, "connect"),
    ],
)
def test_a_link_that_does_not_fit_is_refused_and_the_next_one_opens(
    prefill, decoder, changes, says
):
    answer = decoder.open(**changes)
    assert isinstance(answer, Refused)
    assert says in answer.reason
    assert decoder.open() == LinkOpened(decoder.link)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pages": (6,)}, "1 pages"),
        ({"pages": (6, 7, 5)}, "3 pages"),
        ({"pages": (6, 8)}, "pool has 8"),
        ({"first_page": 2, "pages": ()}, "pages"),
        ({"slot": 4096}, "slot"),
        ({"generation": 256}, "slot"),
    ],
)
def test_a_request_that_would_write_elsewhere_is_rejected(prefill, decoder, changes, says):
    decoder.open()
    answer = decoder.ask(decoder.request(**changes))
    assert isinstance(answer, Rejected)
    assert says in answer.reason
    assert prefill.host.calls == []


def test_a_request_on_a_link_of_nobody_is_refused(prefill, decoder):
    assert isinstance(decoder.ask(decoder.request(link=12345)), Refused)


def test_noise_on_the_socket_hurts_nobody(context, prefill, decoder):
    stray = context.socket(zmq.DEALER)
    stray.linger = 0
    stray.connect(prefill.listener.endpoint)
    for frames in ([b""], [b"", b"x"], [b"\xc1"], [encode(Heartbeat())[:-1]], [b"a", b"b", b"c"]):
        stray.send_multipart(frames)
    negative = msgspec.msgpack.encode({"t": "cancel", "handoff": -1})
    stray.send(negative)
    stray.send(encode(Heartbeat()))
    assert stray.poll(5000)
    assert decode(stray.recv()) == Heartbeat()
    stray.close()
    assert decoder.open() == LinkOpened(decoder.link)


def test_a_new_link_of_the_same_worker_ends_the_old_one(prefill, decoder):
    decoder.open()
    first = decoder.link
    decoder.ask(decoder.request())
    assert decoder.open() == LinkOpened(decoder.link)
    assert decoder.link != first
    deadline = time.monotonic() + DEADLINE_S
    while ("release", 1) not in prefill.host.calls and time.monotonic() < deadline:
        time.sleep(0.001)
    assert prefill.host.calls == [("start", 1), ("stop", 1), ("release", 1)]


def test_a_link_that_is_asked_for_twice_is_opened_once(prefill, decoder):
    """The answer may have been lost."""
    assert decoder.open() == LinkOpened(decoder.link)
    again = OpenLink(
        "d", PROTOCOL_VERSION, "m", decoder.link, "local", decoder.transfer.address(),
        msgspec.msgpack.encode(LAYOUT),
    )  # fmt: skip
    assert decoder.ask(again) == LinkOpened(decoder.link)
    assert decoder.ask(decoder.request()) == Accepted(1)
    assert prefill.side.counters["links"] == 1


def test_links_come_and_go_more_often_than_there_are_gates(prefill, decoder):
    for _ in range(300):
        assert decoder.open() == LinkOpened(decoder.link)
        decoder.transfer.close_link(decoder.link)
        answer = decoder.hear()
        assert isinstance(answer, Refused), "the other end hears that its link was cut"
