import time

import pytest

from relevo.transfer.engine import (
    Copy,
    LayerMap,
    PagePair,
    Push,
    TransferEngine,
    TransferEvent,
)

PAGE = 4096
PAGES = 64
LAYERS = 3
DEADLINE_S = 10.0


class Side:
    """One transfer engine with a pool of LAYERS × PAGES pages."""

    def __init__(self, transport):
        self.engine = TransferEngine(transport)
        self.pool = self.engine.allocate("pool", LAYERS * PAGES * PAGE)
        self.engine.start()
        self.seen = []

    def page(self, layer, page):
        at = (layer * PAGES + page) * PAGE
        return self.pool[at : at + PAGE]

    def wait(self, kind, **fields):
        """The first event of this kind, from those seen or to come."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.seen += self.engine.poll_events()
            for event in self.seen:
                if event.kind == kind and all(getattr(event, k) == v for k, v in fields.items()):
                    self.seen.remove(event)
                    return event
            time.sleep(0.001)
        raise AssertionError(f"no {kind} {fields} among {[e.kind for e in self.seen]}")

    def counter(self):
        """The first counter that completes."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            events = self.engine.poll_counters()
            if events:
                return events[0]
            time.sleep(0.001)
        raise AssertionError("no counter completed")


def layer_maps(copies=None):
    whole = [Copy(0, 0, PAGE)]
    return [
        LayerMap(0, 0, layer * PAGES * PAGE, PAGE, layer * PAGES * PAGE, PAGE, copies or whole)
        for layer in range(LAYERS)
    ]


def push(handoff, link, *, slot=5, generation=1, ready=(), layered=(), last=True):
    return Push(
        handoff,
        link,
        slot,
        generation,
        [PagePair(a, b) for a, b in ready],
        [PagePair(a, b) for a, b in layered],
        last,
    )


class Pair:
    """A source linked to a target."""

    def __init__(self, transport, copies=None):
        self.source, self.target = Side(transport), Side(transport)
        self.link = self.target.engine.expect_link()
        self.source.engine.connect(
            self.link, self.target.engine.address(), layer_maps(copies), DEADLINE_S
        )
        self.source.wait(TransferEvent.Kind.LINK_UP)
        self.target.wait(TransferEvent.Kind.LINK_UP)

    def step(self, *pushes, commit=True, layers=LAYERS):
        engine = self.source.engine
        engine.open_step(list(pushes))
        for _ in range(layers):
            engine.bump()
        engine.end_step(commit)

    def stop(self):
        self.source.engine.stop()
        self.target.engine.stop()


@pytest.fixture(params=["local", "tcp"])
def transport(request):
    return request.param


@pytest.fixture
def pair(transport):
    pair = Pair(transport)
    yield pair
    pair.stop()
