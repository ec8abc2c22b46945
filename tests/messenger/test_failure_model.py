"""The failure model holds (docs/failure-model.md), and the machine that says so can tell: each of
its rules, taken out, is found."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from relevo.messenger import decode_table, prefill_table
from relevo.messenger.arrivals import Arrivals
from relevo.messenger.decode_table import DecodeTable, Freed, Lost
from relevo.messenger.prefill_table import PrefillTable, Release, Send
from relevo.wire.messages import Accepted, CancelAck, Failed, Finished

from .inspected_machine import InspectedMachine
from .machine import HandoffMachine

EXAMPLES = 2000
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
SETTINGS = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=SLOW_IS_FINE
)


def test_no_page_is_reused_too_early_and_everything_ends():
    run_state_machine_as_test(HandoffMachine, settings=SETTINGS)


def test_what_has_landed_is_inspected_and_everything_ends():
    run_state_machine_as_test(InspectedMachine, settings=SETTINGS)


class FreesOnCancel(DecodeTable):
    """Pages are freed when the cancel is sent, not when it is acknowledged."""

    def cancel(self, request, now):
        actions = super().cancel(request, now)
        return actions + self._free_all()

    def _free_all(self):
        gone = [h for h in self._handoffs.values() if h.state is decode_table.State.CANCELLING]
        for handoff in gone:
            self._forget(handoff)
        return [Freed(handoff) for handoff in gone]


class FreesOnDeadline(FreesOnCancel):
    """A deadline that has passed is taken for an acknowledgement."""

    def cancel(self, request, now):
        return DecodeTable.cancel(self, request, now)

    def tick(self, now):
        return super().tick(now) + self._free_all()


class FreesOnLinkLost(DecodeTable):
    """Pages are freed when the link is lost, not when it has closed."""

    def link_lost(self, link, reason):
        return super().link_lost(link, reason) + self.link_closed(link)


class NeverGivesUp(DecodeTable):
    """No deadlines."""

    def tick(self, now):
        return []


class ForgetsToFreeRejected(DecodeTable):
    """A rejected hand-off is lost but its pages are kept."""

    def _ended(self, id, reason):
        return [a for a in super()._ended(id, reason) if isinstance(a, Lost)]


class AcknowledgesBeforeTheDrain(PrefillTable):
    """CancelAck is sent when the cancel comes, while writes are under way."""

    def cancel(self, id, link):
        actions = super().cancel(id, link)
        return actions if any(isinstance(a, Send) for a in actions) else [
            *actions, Send(link, CancelAck(id))
        ]  # fmt: skip


class FailsBeforeTheDrain(PrefillTable):
    """Failed is sent when the host gives up, while writes are under way."""

    def abandon(self, id, reason):
        handoff = self._handoffs.get(id)
        actions = super().abandon(id, reason)
        return [*actions, Send(handoff.job.link, Failed(id, reason))] if actions else actions


class ReleasesBeforeTheDrain(PrefillTable):
    """Source pages are given back while writes still read them."""

    def cancel(self, id, link):
        actions = super().cancel(id, link)
        known = id in self._handoffs
        return [*actions, Release(id)] if known and actions else actions


class KeepsNoTombstones(PrefillTable):
    """An acknowledged cancel is not remembered, so a late request starts after all."""

    def _remember(self, id, answer):
        pass


class StartsAgain(PrefillTable):
    """A repeated request is taken for a new one."""

    def request(self, job, refusal):
        if job.handoff in self._handoffs:
            return [prefill_table.Start(job), Send(job.link, Accepted(job.handoff))]
        return super().request(job, refusal)


class AnswersAreForgotten(PrefillTable):
    """A request that is said again after the end of its hand-off is taken for a new one."""

    def request(self, job, refusal):
        if isinstance(self._answers.get(job.handoff), Finished):
            del self._answers[job.handoff]
        return super().request(job, refusal)


class LetsGoUnchecked(Arrivals):
    """Checksums are not compared."""

    def told(self, id, sent):
        arrival = self._waiting.get(id)
        return super().told(id, arrival.arrived) if arrival is not None else []


class HoldsNothing(Arrivals):
    """What is intact runs at once."""

    def __init__(self, hold):
        super().__init__(False)


class NeverAsksAgain(Arrivals):
    """No deadline for checksums."""

    def tick(self, now):
        return []


class KeepsWhatIsCancelled(Arrivals):
    """A request that has gone leaves its pages behind."""

    def cancel(self, request):
        return []


RULES = {
    FreesOnCancel: {"decode_table": FreesOnCancel},
    FreesOnDeadline: {"decode_table": FreesOnDeadline},
    FreesOnLinkLost: {"decode_table": FreesOnLinkLost},
    NeverGivesUp: {"decode_table": NeverGivesUp},
    ForgetsToFreeRejected: {"decode_table": ForgetsToFreeRejected},
    AcknowledgesBeforeTheDrain: {"prefill_table": AcknowledgesBeforeTheDrain},
    FailsBeforeTheDrain: {"prefill_table": FailsBeforeTheDrain},
    ReleasesBeforeTheDrain: {"prefill_table": ReleasesBeforeTheDrain},
    KeepsNoTombstones: {"prefill_table": KeepsNoTombstones},
    StartsAgain: {"prefill_table": StartsAgain},
}

INSPECTION_RULES = {
    AnswersAreForgotten: {"prefill_table": AnswersAreForgotten},
    LetsGoUnchecked: {"arrivals_table": LetsGoUnchecked},
    HoldsNothing: {"arrivals_table": HoldsNothing},
    NeverAsksAgain: {"arrivals_table": NeverAsksAgain},
    KeepsWhatIsCancelled: {"arrivals_table": KeepsWhatIsCancelled},
}


def is_found(machine):
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                SETTINGS, database=None, derandomize=True, phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )  # fmt: skip


@pytest.mark.parametrize("broken", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_taken_out_is_found(broken):
    is_found(type("Broken", (HandoffMachine,), RULES[broken]))


@pytest.mark.parametrize("broken", INSPECTION_RULES, ids=lambda rule: rule.__name__)
def test_a_rule_of_inspection_taken_out_is_found(broken):
    is_found(type("Broken", (InspectedMachine,), INSPECTION_RULES[broken]))
