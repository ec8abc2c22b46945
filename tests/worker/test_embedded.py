"""The embedded host against a messenger played by the test: whatever order words come in, every
page comes back, and none before it is safe."""

import pytest
import torch
import transformers

from relevo.messenger.landings import Landing
from relevo.messenger.slots import Slot
from relevo.types import Sampling
from relevo.wire.messages import Generate, PrefillCandidate, PrefillDone
from relevo.worker.embedded import EmbeddedHost
from relevo.worker.inbox import Inbox
from tests.engine.conftest import CHECKPOINTS, make_engine

CANDIDATES = (PrefillCandidate("p0", "tcp://a"), PrefillCandidate("p1", "tcp://b"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(CHECKPOINTS["llama"]()).save_pretrained(folder)
    return folder


class Played:
    """A host on an engine, with the messenger's and the router's ends recorded."""

    def __init__(self, folder, tmp_path, inspected=False):
        self.inbox = Inbox()
        self.engine = make_engine(folder, tmp_path)
        self.host = EmbeddedHost(self.engine, "d", self.inbox)
        self.wanted, self.cancelled, self.said = [], [], []
        self.landed, self.reported = [], []
        self.fd = self.inbox.fd
        self.host.connect(
            post=lambda call, *arguments: call(*arguments),
            to_router=self.said.append,
            request_handoff=lambda wanted, candidates: self.wanted.append((wanted, candidates)),
            cancel_handoff=self.cancelled.append,
            landings=self,
            report_landing=self.reported.append,
            inspected=inspected,
            note_prefill=None,
            abandon_prefill=None,
        )

    def poll(self):
        """As Landings does."""
        landed, self.landed = self.landed, []
        return [Landing(handoff, Slot(0, 0), 5, overshot=False) for handoff in landed]

    def turn(self):
        """One turn of the engine loop, without computing."""
        self.inbox.run_all()
        self.host.poll_landings()
        self.host.admit()
        self.host.flush()

    def generate(self, attempt=1):
        tokens = tuple(range(50))
        self.host.generate(Generate("r", attempt, tokens, Sampling(4, temperature=0), CANDIDATES))
        self.turn()

    @property
    def held(self):
        return self.engine.pool.owned


@pytest.fixture
def played(folder, tmp_path):
    return Played(folder, tmp_path)


def test_a_worker_that_has_done_nothing_yet_tells_its_free_pages(folder, tmp_path):
    played = Played(folder, tmp_path)
    assert played.host.load.free_pages == played.engine.pool.available > 0


def test_an_aborted_handoff_keeps_its_pages_until_they_are_freed(played):
    played.generate()
    ((wanted, _),) = played.wanted
    held = played.held
    played.host.abort("r")
    played.turn()
    assert played.cancelled == ["r"]
    assert played.held == held, "the prefill worker may still write"
    played.host.freed(wanted.handoff)
    played.turn()
    assert played.held == 0


def test_a_lost_handoff_goes_on_with_the_next_candidate_on_other_pages(played):
    played.generate()
    played.host.lost("r", played.wanted[0][0].handoff, "silent")
    played.turn()
    (first, _), (second, candidates) = played.wanted
    assert candidates == CANDIDATES[1:]
    assert not set(first.pages) & set(second.pages)
    played.host.lost("r", second.handoff, "silent")
    played.turn()
    assert len(played.wanted) == 2, "no candidate is left: it computes the prompt itself"
    assert played.engine.scheduler.running


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_aborting_after_a_loss_frees_each_handoff_s_own_pages(played, order):
    played.generate()
    played.host.lost("r", played.wanted[0][0].handoff, "silent")
    played.turn()
    handoffs = [wanted.handoff for wanted, _ in played.wanted]
    pages = [set(wanted.pages) for wanted, _ in played.wanted]
    played.host.abort("r")
    played.turn()
    played.host.freed(handoffs[order[0]])
    played.turn()
    again = set(played.engine.pool.allocate(played.engine.pool.available))
    assert pages[order[0]] <= again
    assert not pages[order[1]] & again, "still at risk"
    played.engine.pool.release(again)
    played.host.freed(handoffs[order[1]])
    played.turn()
    assert played.held == 0


def test_a_later_attempt_replaces_an_earlier_one_and_a_repeated_one_does_not(played):
    played.generate(attempt=1)
    played.generate(attempt=1)
    assert len(played.wanted) == 1
    played.generate(attempt=2)
    assert len(played.wanted) == 2
    assert played.cancelled == ["r"]
    played.host.freed(played.wanted[0][0].handoff)
    played.host.abort("r")
    played.turn()
    played.host.freed(played.wanted[1][0].handoff)
    played.turn()
    assert played.held == 0


def test_dropping_everything_is_told_when_it_is_done(played):
    played.generate()
    done = []
    played.host.abort_all(lambda: done.append(played.engine.scheduler.awaiting_kv[:]))
    played.turn()
    assert done == [[]]


@pytest.fixture
def inspected(folder, tmp_path):
    """A host that waits for `intact`, with a hand-off that has landed."""
    played = Played(folder, tmp_path, inspected=True)
    played.generate()
    played.landed = [played.wanted[0][0].handoff]
    played.turn()
    return played


def test_what_is_inspected_runs_when_it_is_intact_and_its_credit_is_free_before(inspected):
    assert [landing.handoff for landing in inspected.reported] == [inspected.wanted[0][0].handoff]
    assert PrefillDone("r", 1) in inspected.said
    assert not inspected.engine.scheduler.running
    inspected.host.intact(inspected.wanted[0][0].handoff, 5)
    inspected.turn()
    assert inspected.engine.scheduler.running


def test_what_arrived_wrong_goes_on_with_the_next_candidate(inspected):
    (first, _) = inspected.wanted[0]
    inspected.host.lost("r", first.handoff, "checksums differ")
    inspected.host.freed(first.handoff)
    inspected.turn()
    assert len(inspected.wanted) == 2
    assert inspected.held == len(inspected.engine.scheduler.awaiting_kv[0].pages)


@pytest.mark.parametrize("last_word", ["intact", "freed"])
def test_what_is_aborted_while_it_is_inspected_frees_its_pages_once(inspected, last_word):
    """The messenger may have let it go before it heard of the abort."""
    inspected.host.abort("r")
    inspected.turn()
    assert inspected.cancelled == ["r"]
    handoff = inspected.wanted[0][0].handoff
    if last_word == "intact":
        inspected.host.intact(handoff, 5)
    else:
        inspected.host.freed(handoff)
    inspected.turn()
    assert inspected.held == 0


def test_a_later_attempt_while_an_earlier_one_is_inspected(inspected):
    inspected.generate(attempt=2)
    assert inspected.cancelled == ["r"]
    assert len(inspected.wanted) == 2
    inspected.host.freed(inspected.wanted[0][0].handoff)
    inspected.landed = [inspected.wanted[1][0].handoff]
    inspected.turn()
    inspected.host.intact(inspected.wanted[1][0].handoff, 6)
    inspected.turn()
    assert PrefillDone("r", 2) in inspected.said
    assert len(inspected.engine.scheduler.running) == 1
