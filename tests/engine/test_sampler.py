from collections import Counter

import torch

from relevo.engine.sampler import sample, uniform
from relevo.types import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -10.0])


def draws(sampling_of, n=4000):
    rows = LOGITS.repeat(n, 1)
    return Counter(sample(rows, [sampling_of(i) for i in range(n)], [9] * n))


def test_greedy_takes_the_best():
    assert set(draws(lambda i: Sampling(1, temperature=0, seed=i), 20)) == {0}


def test_draws_follow_the_distribution():
    counts = draws(lambda i: Sampling(1, seed=i))
    expected = LOGITS.softmax(-1) * 4000
    for token in range(4):
        assert abs(counts[token] - expected[token]) < 5 * expected[token].sqrt() + 5


def test_top_k_and_top_p_leave_the_rest_out():
    assert set(draws(lambda i: Sampling(1, seed=i, top_k=2))) == {0, 1}
    # The probabilities are .64, .24, .09, .03: the first two reach 0.8.
    assert set(draws(lambda i: Sampling(1, seed=i, top_p=0.8))) == {0, 1}
    assert set(draws(lambda i: Sampling(1, seed=i, top_p=0.01))) == {0}


def test_a_seed_gives_the_same_draws_whatever_runs_beside_it():
    alone = sample(LOGITS[None], [Sampling(1, seed=5)], [3])
    beside = sample(LOGITS.repeat(3, 1), [Sampling(1, seed=s) for s in (1, 5, 9)], [3, 3, 3])
    assert beside[1] == alone[0]


def test_uniform_is_uniform():
    values = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert all(0 <= v < 1 for v in values)
    tenths = Counter(int(v * 10) for v in values)
    assert all(170 < tenths[i] < 330 for i in range(10))
