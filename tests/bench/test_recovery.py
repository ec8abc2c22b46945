from relevo.bench.metrics import Budgets
from relevo.bench.recovery import recovery_of, until_good
from relevo.bench.rows import LoadRun, RequestRow

BUDGETS = Budgets(ttft_ms=100, tpot_ms=20, itl_p99_ms=50)


def run_of(outcomes):
    """A request a second; by its letter: good, slow, failed, refused."""
    rows = []
    for index, kind in enumerate(outcomes):
        sent = index * 1000.0
        answer = {"g": (sent + 50,), "s": (sent + 500,)}.get(kind, ())
        outcome = {"f": "failed", "r": "refused"}.get(kind, "ok")
        rows.append(RequestRow(index, sent, sent, outcome, 8, 1, answer))
    return LoadRun("t", 0, float(len(outcomes)), 1.0, 1.0, 0.1, tuple(rows))


def test_good_again_from_the_first_of_five_in_a_row():
    assert until_good(run_of("gggg" + "fsgs" + "ggggg"), BUDGETS, 3.5) == 8.0 - 3.5


def test_as_good_as_before_is_enough():
    assert until_good(run_of("gsgs" + "ffff" + "gsgsg"), BUDGETS, 3.75) == 8.0 - 3.75


def test_never_good_again_or_never_good_is_none():
    assert until_good(run_of("ggggffffffff"), BUDGETS, 3.5) is None
    assert until_good(run_of("ssssgggggg"), BUDGETS, 3.5) is None


def test_lost_are_those_that_failed_and_not_those_refused():
    recovery = recovery_of("a", "decode-0", 3.5, run_of("ggggffrsggggg"), BUDGETS)
    assert (recovery.lost, recovery.killed) == (2, "decode-0")
    assert recovery.digest == recovery.run.digest
