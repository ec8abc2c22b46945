import math
import random

import numpy as np
import pytest

from relevo.bench.statistics import percentile, resampled, student_t


def test_percentile_is_numpys():
    draw = random.Random(1)
    values = [draw.random() for _ in range(37)]
    for share in (0, 0.5, 0.9, 0.99, 1):
        assert percentile(values, share) == pytest.approx(np.quantile(values, share))


@pytest.mark.parametrize("freedom", [1, 2, 4, 8, 12, 20])
def test_student_t_leaves_the_wanted_tails(freedom):
    """By integrating the density over the tail, with x = t / u."""
    c = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    u = np.linspace(1e-9, 1, 400_001)
    x = student_t(freedom) / u
    tail = np.trapezoid(c * (1 + x**2 / freedom) ** (-(freedom + 1) / 2) * x / u, u)
    assert 2 * tail == pytest.approx(0.025, rel=0.01)


def test_resampling_three_repeats_is_exact():
    """27 draws: the mean of (0, 0, 9) is 0 in 8 of them and 9 in one."""
    found = resampled([0.0, 0.0, 9.0], lambda values: sum(values) / 3)
    assert found == (3.0, 0.0, 9.0)
    assert resampled([4.0], sum) == (4.0, None, None)


def test_resampling_covers_the_truth_about_as_often_as_it_says():
    draw = random.Random(2)
    hits = 0
    for _ in range(300):
        values = [draw.gauss(10, 1) for _ in range(12)]
        _, low, high = resampled(values, lambda v: sum(v) / len(v))
        hits += low <= 10 <= high
    assert 0.85 < hits / 300 <= 1
