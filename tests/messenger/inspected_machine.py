"""The machine with `--verify-kv` and `--hold-handoffs`: what has landed keeps its pages until its
checksums are known to be equal and someone has released it.

Beyond what must hold without them:

- nothing is written to a hand-off that has landed;
- a request runs only on what arrived as it was sent.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from relevo.messenger import arrivals
from relevo.messenger import decode_table as decode
from relevo.messenger.arrivals import Arrivals
from relevo.wire.messages import CHECKSUM_BYTES, Finished

from .machine import HandoffMachine
from .world import Write

AS_SENT = bytes(CHECKSUM_BYTES)
SPOILED = bytes([1]) * CHECKSUM_BYTES


class InspectedMachine(HandoffMachine):
    arrivals_table = Arrivals
    pages_each = 1  # what follows a landing is of interest here

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = self.arrivals_table(hold=True)
        self.at_rest: dict[int, decode.Handoff] = {}  # landed, and not its request's yet

    @staticmethod
    def _arrived(id: int) -> bytes:
        return SPOILED if id % 4 == 0 else AS_SENT

    def _finished(self, id: int) -> Finished:
        return Finished(id, (), AS_SENT)

    def _landed(self, handoff: decode.Handoff) -> None:
        self._give_slot_back(handoff)
        self.at_rest[handoff.id] = handoff
        arrived = self._arrived(handoff.id)
        self._arrive(self.arrivals.landed(handoff, 0, arrived, handoff.sent, self.now))

    def _arrive(self, actions: list[arrivals.Action]) -> None:
        for action in actions:
            match action:
                case decode.Send():
                    self.to_prefill.append((action.link, action.message))
                case arrivals.LetGo():
                    handoff = action.arrival.handoff
                    assert self._arrived(handoff.id) == AS_SENT, "runs on what was not sent"
                    assert action.arrival.held, "nobody has released it"
                    self._give_pages_back(self.at_rest.pop(handoff.id))
                case arrivals.Spoiled() | arrivals.Freed():
                    self._give_pages_back(self.at_rest.pop(action.arrival.handoff.id))

    def _at_decode(self, message: object) -> None:
        super()._at_decode(message)
        if isinstance(message, Finished):
            self.decoder.told(message.handoff, message.checksums)
            self._arrive(self.arrivals.told(message.handoff, message.checksums))

    def _end(self, write: Write, fails: bool) -> None:
        assert write.handoff not in self.at_rest, "written after it had landed"
        super()._end(write, fails)

    def _gone(self, request: int) -> None:
        super()._gone(request)
        self._arrive(self.arrivals.cancel(str(request)))
        assert request not in self.at_rest, "what has landed is kept for a request that has gone"

    def _tick(self) -> None:
        super()._tick()
        self._arrive(self.arrivals.tick(self.now))

    def _fence(self, link: int) -> None:
        super()._fence(link)
        self._arrive(self.arrivals.link_lost(link))

    @precondition(lambda self: self.at_rest)
    @rule(data=st.data())
    def someone_releases(self, data: st.DataObject) -> None:
        self._release(data.draw(st.sampled_from(sorted(self.at_rest))))

    def _release(self, id: int) -> None:
        self._arrive(self.arrivals.release(id))

    def settle(self) -> None:
        for id in sorted(self.at_rest):
            self._release(id)

    def teardown(self) -> None:
        super().teardown()
        assert len(self.arrivals) == 0, "what has landed never came to its end"
