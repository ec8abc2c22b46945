from relevo.router.policy import Choice, WorkerView, choose
from relevo.types import Role


def worker(name, role, *, requests=0, waiting=0, outstanding=0, credit=1000, local=0):
    return WorkerView(name, role, requests, waiting, outstanding, credit, local)


PREFILL = worker("p0", Role.PREFILL)
DECODE = worker("d0", Role.DECODE)


def test_the_least_loaded_of_each_role():
    busy = worker("a", Role.DECODE, requests=3)
    free = worker("b", Role.DECODE, requests=1)
    loaded = worker("p1", Role.PREFILL, outstanding=200)
    assert choose(100, [busy, free, loaded, PREFILL]) == Choice("b", ("p0", "p1"))


def test_a_worker_without_pages_comes_last():
    starved = worker("a", Role.DECODE, requests=1, waiting=1)
    busy = worker("b", Role.DECODE, requests=5)
    assert choose(100, [starved, busy, PREFILL]).generates == "b"


def test_a_prompt_waits_for_credit_but_an_idle_worker_takes_any():
    used = worker("p0", Role.PREFILL, outstanding=900)
    assert choose(200, [DECODE, used]) is None
    assert choose(100, [DECODE, used]) == Choice("d0", ("p0",))
    assert choose(50_000, [DECODE, PREFILL]) == Choice("d0", ("p0",))


def test_who_needs_no_credit_does_not_wait_behind_who_does():
    short = worker("d0", Role.DECODE, local=32)
    assert choose(33, [short, PREFILL], on_credit=False) == Choice("d0")
    assert choose(34, [short, PREFILL], on_credit=False) is None


def test_mixed_workers_and_lone_decoders_compute_their_own_prompts():
    assert choose(100, [worker("m", Role.MIXED), PREFILL]) == Choice("m")
    assert choose(100, [DECODE]) == Choice("d0")


def test_nobody_generates():
    assert choose(100, [PREFILL]) is None
    assert choose(100, []) is None
