"""Links between two processes, one of which dies or is stopped."""

import signal
import subprocess
import sys
import time

import pytest

from relevo.transfer.engine import TransferEvent

from .conftest import LAYERS, PAGES, Side

Kind = TransferEvent.Kind

AT_ONCE = 64  # hand-offs, so that it spends its time writing
WRITER = f"""
import sys
from tests.transfer.conftest import Side, layer_maps, push
from relevo.transfer.engine import TransferEvent
side = Side(sys.argv[1])
link = int(sys.argv[2])
side.engine.connect(link, bytes.fromhex(sys.argv[3]), layer_maps(), 10.0)
side.wait(TransferEvent.Kind.LINK_UP)
everything = [(page, page) for page in range({PAGES})]
for first in range(1, 10**9, {AT_ONCE}):
    handoffs = range(first, first + {AT_ONCE})
    for handoff in handoffs:
        side.engine.open_handoff(handoff)
    side.engine.open_step([push(handoff, link, layered=everything) for handoff in handoffs])
    for _ in range({LAYERS}):
        side.engine.bump()
    side.engine.end_step(True)
    for handoff in handoffs:
        side.wait(TransferEvent.Kind.PUSHED, handoff=handoff)
"""


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_writer_killed_in_mid_write_is_noticed_and_its_link_closes(transport):
    for _ in range(5):
        target = Side(transport)
        link = target.engine.expect_link()
        target.engine.arm(5, 1, 2**24 - 1)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, transport, str(link), target.engine.address().hex()]
        )
        target.wait(Kind.LINK_UP, link=link)
        while target.engine.counted(5) == 0:
            time.sleep(0.001)
        writer.kill()
        writer.wait()
        target.wait(Kind.LINK_DOWN, link=link)
        target.engine.close_link(link)
        target.wait(Kind.LINK_CLOSED, link=link)
        counted = target.engine.counted(5)
        time.sleep(0.05)
        assert target.engine.counted(5) == counted, "nothing is counted after the link has closed"
        target.engine.stop()


def test_a_writer_stopped_inside_a_write_keeps_its_pages_from_being_reused():
    """The link of a stopped writer closes only when it cannot write any more: at once if it was
    stopped between two writes, and not before it goes on if it was stopped inside one. After that
    not one byte changes."""
    caught = 0
    for _ in range(40):
        target = Side("local")
        link = target.engine.expect_link()
        target.engine.arm(5, 1, 2**24 - 1)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, "local", str(link), target.engine.address().hex()]
        )
        target.wait(Kind.LINK_UP, link=link)
        while target.engine.counted(5) == 0:
            time.sleep(0.0005)
        writer.send_signal(signal.SIGSTOP)
        target.engine.close_link(link)
        time.sleep(0.05)
        target.seen += target.engine.poll_events()
        closed = any(e.kind == Kind.LINK_CLOSED for e in target.seen)
        caught += not closed
        if closed:
            target.pool[:] = 7  # reused
        writer.send_signal(signal.SIGCONT)
        target.wait(Kind.LINK_CLOSED, link=link)
        if not closed:
            target.pool[:] = 7
        time.sleep(0.05)
        assert (target.pool == 7).all(), "a fenced writer wrote into a reused page"
        writer.kill()
        writer.wait()
        target.engine.stop()
        if caught >= 3:
            break
    assert caught, "never stopped inside a write: this test has shown nothing"
