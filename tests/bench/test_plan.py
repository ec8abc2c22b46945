import pytest

from relevo.bench.plan import Plan


@pytest.mark.parametrize(
    ("rounds", "elapsed_s", "room"),
    [
        (0, 500, True),
        (1, 500, True),  # one alone shows no difference
        (2, 379, True),
        (2, 381, False),
    ],
)
def test_rounds_beyond_two_have_to_fit_the_time(rounds, elapsed_s, room):
    plan = Plan(True, 4, 6, 2, trace=lambda pace: None, within_s=450)
    assert plan.has_room(rounds, elapsed_s, longest_round_s=70) is room
