"""Both state tables joined by a control link that delays, reorders, duplicates and drops, and a
data plane whose writes land late, fail, or are cut off. Hypothesis drives it.

What must hold at every moment:

- a write lands only in a page that its hand-off still holds (no page is reused too early);
- no part is counted twice, and none in another hand-off's counter;

and once the world is fair again (messages arrive, writes end, links close, time passes):

- every request has ended, and no hand-off, page or slot is left over.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevo.messenger import decode_table as decode
from relevo.messenger import prefill_table as prefill
from relevo.messenger.host import PrefillJob
from relevo.messenger.slots import Slot, SlotPool
from relevo.wire.messages import (
    Accepted,
    Cancel,
    CancelAck,
    Failed,
    Finished,
    PrefillRequest,
    Rejected,
)

from .world import Counter, Job, Write

PAGES = 9
SLOTS = 3
HANDOFF_S = 50.0


class HandoffMachine(RuleBasedStateMachine):
    """The prefill and the decode worker with everything between them."""

    decode_table = decode.DecodeTable
    prefill_table = prefill.PrefillTable
    slot_pool = SlotPool
    pages_each = 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.decoder = self.decode_table()
        self.prefiller = self.prefill_table()
        self.slots = self.slot_pool(SLOTS)
        self.link = 1
        self.closing: set[int] = set()  # fenced by the decoder, not yet closed
        self.closed: set[int] = set()  # closed by the decoder: nothing can land any more
        self.cut: set[int] = set()  # closed by the prefill worker
        self.to_prefill: list[tuple[int, object]] = []
        self.to_decode: list[object] = []
        self.writes: list[Write] = []
        self.jobs: dict[int, Job] = {}
        self.counters: dict[int, Counter] = {}
        self.holder: dict[int, int | None] = dict.fromkeys(range(PAGES))
        self.pages_of: dict[int, tuple[int, ...]] = {}
        self.waiting: set[int] = set()  # requests that still wait for their hand-off
        self.ids = 0
        # Disasters are bounded, so that most of a run is work that they can hit.
        self.cuts_left = 2
        self.drops_left = 3

    # ---- the decode worker ----

    def _free_pages(self) -> list[int]:
        return [page for page, holder in self.holder.items() if holder is None]

    @precondition(lambda self: len(self._free_pages()) >= self.pages_each)
    @rule()
    def ask(self) -> None:
        slot = self.slots.take()
        if slot is None:
            return
        self.ids += 1
        pages = tuple(self._free_pages()[: self.pages_each])
        self.holder.update(dict.fromkeys(pages, self.ids))
        self.pages_of[self.ids] = pages
        self.waiting.add(self.ids)
        self.counters[slot.number] = Counter(slot.generation, len(pages))
        message = PrefillRequest(
            self.ids, self.link, str(self.ids), (1,), 0, pages, slot.number, slot.generation
        )
        self._decode(self.decoder.request(message, "p", self.now, HANDOFF_S))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """The client has gone."""
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(request)
        self._gone(request)

    def _gone(self, request: int) -> None:
        self._decode(self.decoder.cancel(str(request), self.now))

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._tick()

    def _tick(self) -> None:
        self._decode(self.decoder.tick(self.now))

    @precondition(lambda self: self.cuts_left)
    @rule()
    def decoder_loses_the_link(self) -> None:
        self.cuts_left -= 1
        self._decode(self.decoder.link_lost(self.link, "silent"))

    @precondition(lambda self: self.closing)
    @rule(data=st.data())
    def link_closes(self, data: st.DataObject) -> None:
        """Nothing of the link can land any more: the transfer engine says so."""
        self._close(data.draw(st.sampled_from(sorted(self.closing))))

    def _close(self, link: int) -> None:
        self.closing.discard(link)
        self.closed.add(link)
        self.writes = [w for w in self.writes if w.link != link]
        self._decode(self.decoder.link_closed(link))

    def _decode(self, actions: list[decode.Action]) -> None:
        for action in actions:
            match action:
                case decode.Send():
                    self.to_prefill.append((action.link, action.message))
                case decode.Landed():
                    assert not self._under_way(action.handoff.id), "landed, and yet more to come"
                    self._landed(action.handoff)
                case decode.Lost():
                    self.waiting.discard(action.handoff.id)
                case decode.Freed():
                    self._give_slot_back(action.handoff)
                    self._give_pages_back(action.handoff)
                case decode.Fence():
                    self._fence(action.link)

    def _fence(self, link: int) -> None:
        self.closing.add(link)
        if link == self.link:
            self.link += 1  # the next request opens a new one

    def _landed(self, handoff: decode.Handoff) -> None:
        self._give_slot_back(handoff)
        self._give_pages_back(handoff)

    def _give_slot_back(self, handoff: decode.Handoff) -> None:
        self.counters.pop(handoff.slot.number, None)
        self.slots.give_back(handoff.slot)

    def _give_pages_back(self, handoff: decode.Handoff) -> None:
        self.waiting.discard(handoff.id)
        for page in self.pages_of.pop(handoff.id):
            assert self.holder[page] == handoff.id
            self.holder[page] = None

    def _under_way(self, handoff: int) -> bool:
        return any(w.handoff == handoff for w in self.writes)

    # ---- the control link ----

    @precondition(lambda self: self.to_prefill)
    @rule(data=st.data(), again=st.booleans())
    def prefill_hears(self, data: st.DataObject, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.to_prefill) - 1))
        link, message = self.to_prefill[index] if again else self.to_prefill.pop(index)
        self._at_prefill(link, message)

    @precondition(lambda self: self.to_decode)
    @rule(data=st.data(), again=st.booleans())
    def decode_hears(self, data: st.DataObject, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.to_decode) - 1))
        message = self.to_decode[index] if again else self.to_decode.pop(index)
        self._at_decode(message)

    @precondition(lambda self: self.drops_left and (self.to_prefill or self.to_decode))
    @rule(data=st.data())
    def a_message_is_lost(self, data: st.DataObject) -> None:
        self.drops_left -= 1
        queue = data.draw(st.sampled_from([q for q in (self.to_prefill, self.to_decode) if q]))
        queue.pop(data.draw(st.integers(0, len(queue) - 1)))

    def _at_prefill(self, link: int, message: object) -> None:
        match message:
            case PrefillRequest():
                if link in self.cut:
                    return
                job = PrefillJob(
                    message.handoff, link, message.request, message.tokens, 0, message.pages,
                    Slot(message.slot, message.generation),
                )  # fmt: skip
                self._prefill(self.prefiller.request(job, None))
            case Cancel():
                self._prefill(self.prefiller.cancel(message.handoff, link))

    def _at_decode(self, message: object) -> None:
        match message:
            case Accepted():
                self.decoder.accepted(message.handoff, self.now)
            case Rejected():
                self._decode(self.decoder.rejected(message.handoff, message.reason))
            case CancelAck():
                self._decode(self.decoder.cancel_ack(message.handoff))
            case Failed():
                self._decode(self.decoder.failed(message.handoff, message.reason))

    # ---- the prefill worker ----

    def _computable(self) -> list[int]:
        return [id for id, job in self.jobs.items() if job.unposted and not job.stopped]

    @precondition(lambda self: self._computable())
    @rule(data=st.data())
    def a_page_is_posted(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self._computable()))
        self._post(id)

    def _post(self, id: int) -> None:
        """As the transfer engine does: pushes of a hand-off that is not open are refused, and a
        link that has closed takes no write."""
        job = self.jobs[id]
        page = job.unposted.pop(0)
        if not job.open or job.withdrawn or job.broken or job.job.link in self.cut:
            return
        if job.job.link in self.closed:
            job.broken = True
            self._progress(id, job)
        else:
            self.writes.append(Write(id, job.job.link, page, job.job.slot))

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), fails=st.booleans())
    def a_write_ends(self, data: st.DataObject, fails: bool) -> None:
        self._end(self.writes[data.draw(st.integers(0, len(self.writes) - 1))], fails)

    def _end(self, write: Write, fails: bool) -> None:
        self.writes.remove(write)
        job = self.jobs.get(write.handoff)
        if fails:
            if job is not None:
                job.broken = True
        else:
            assert self.holder[write.page] == write.handoff, (
                f"hand-off {write.handoff} wrote into page {write.page}, "
                f"which is {self.holder[write.page]}'s"
            )
            self._count(write)
        if job is not None:
            self._progress(write.handoff, job)

    def _count(self, write: Write) -> None:
        counter = self.counters.get(write.slot.number)
        if counter is None or counter.generation != write.slot.generation:
            return
        assert write.page not in counter.landed, "a part was counted twice"
        counter.landed.add(write.page)
        counter.count += 1
        assert counter.count <= counter.expected
        if counter.count == counter.expected:
            self._decode(self.decoder.counted(write.slot, self.now, overshot=False))

    def _progress(self, id: int, job: Job) -> None:
        """What the transfer engine reports once nothing of the hand-off is in flight."""
        if self._under_way(id) or not job.open:
            return
        if job.withdrawn:
            job.open = False
            self._prefill(self.prefiller.drained(id))
        elif job.broken:
            job.open = False
            self._prefill(self.prefiller.failed(id, "a write failed"))
        elif not job.unposted and not job.stopped:
            job.open = False
            self._prefill(self.prefiller.pushed(id, self._finished(id)))

    def _finished(self, id: int) -> Finished:
        return Finished(id, ())

    @precondition(lambda self: self._computable())
    @rule(data=st.data())
    def the_forward_pass_fails(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self._computable()))
        self.jobs[id].stopped = True
        self._prefill(self.prefiller.abandon(id, "out of memory"))

    @precondition(lambda self: self.cuts_left and self.link not in self.cut)
    @rule()
    def prefill_loses_the_link(self) -> None:
        self.cuts_left -= 1
        self.cut.add(self.link)
        self._prefill(self.prefiller.link_lost(self.link))
        self.writes = [w for w in self.writes if w.link != self.link]  # closing flushes them
        self._prefill(self.prefiller.link_closed(self.link))

    def _prefill(self, actions: list[prefill.Action]) -> None:
        for action in actions:
            match action:
                case prefill.Send():
                    self.to_decode.append(action.message)
                case prefill.Start():
                    assert action.job.handoff not in self.jobs, "started twice"
                    self.jobs[action.job.handoff] = Job(action.job, list(action.job.destination))
                case prefill.Withdraw():
                    job = self.jobs[action.handoff]
                    job.stopped = job.withdrawn = True
                    self._progress(action.handoff, job)
                case prefill.Stop():
                    self.jobs[action.handoff].stopped = True
                case prefill.Release():
                    assert not self._under_way(action.handoff), "source pages are still read"
                    del self.jobs[action.handoff]

    # ---- both ----

    @precondition(lambda self: self.to_prefill or self._computable() or self.writes)
    @rule(moves=st.integers(1, 12))
    def all_goes_well_for_a_while(self, moves: int) -> None:
        """Without it, few hand-offs get far enough for the worse moves to be interesting."""
        for _ in range(moves):
            if self.to_prefill:
                self._at_prefill(*self.to_prefill.pop(0))
            elif self._computable():
                self._post(self._computable()[0])
            elif self.writes:
                self._end(self.writes[0], fails=False)
            elif self.to_decode:
                self._at_decode(self.to_decode.pop(0))

    # ---- what must hold ----

    @invariant()
    def a_counter_counts_its_own_pages(self) -> None:
        for counter in self.counters.values():
            assert counter.count == len(counter.landed) <= counter.expected

    def teardown(self) -> None:
        """The world is fair again: everything has to come to its end."""
        for _ in range(12):
            for link, message in self._drain(self.to_prefill):
                self._at_prefill(link, message)
            for message in self._drain(self.to_decode):  # words may overtake writes
                self._at_decode(message)
            while self._computable():
                self._post(self._computable()[0])
            for write in list(self.writes):
                if write in self.writes:
                    self._end(write, fails=False)
            for message in self._drain(self.to_decode):
                self._at_decode(message)
            self.now += HANDOFF_S
            self._tick()
            for link in sorted(self.closing):
                self._close(link)
            self.settle()
        assert len(self.decoder) == 0, "a hand-off never ended at the decode worker"
        assert not self.waiting, "a request waits for ever"
        assert self._free_pages() == list(range(PAGES)), "a page was lost"
        assert self.slots.free == SLOTS, "a slot was lost"

    def settle(self) -> None:
        """What someone outside would do in the end."""

    @staticmethod
    def _drain(queue: list) -> list:
        taken = list(queue)
        queue.clear()
        return taken
