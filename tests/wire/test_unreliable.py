from relevo.wire.unreliable import LATEST_S, ControlFaults, UnreliableSends


def run(faults, messages=1000):
    """What arrives of so many messages, a ms apart, in order of arrival."""
    sends, arrived = UnreliableSends(faults), []
    for number in range(messages):
        now = number / 1000
        sends.send(lambda number=number: arrived.append(number), now)
        sends.send_due(now)
    end = messages / 1000 + LATEST_S
    sends.send_due(end)
    assert sends.wait_s(end, 9.0) == 9.0, "nothing is left"
    return arrived, sends.counters


def test_without_faults_all_arrive_in_order():
    assert run(ControlFaults()) == (list(range(1000)), {"lost": 0, "repeated": 0, "late": 0})


def test_lost_ones_never_arrive():
    arrived, counters = run(ControlFaults(seed=1, lose=0.1))
    assert len(arrived) == 1000 - counters["lost"] == len(set(arrived))
    assert 50 < counters["lost"] < 200


def test_repeated_ones_arrive_twice():
    arrived, counters = run(ControlFaults(seed=2, repeat=0.1))
    assert len(arrived) == 1000 + counters["repeated"]
    assert set(arrived) == set(range(1000))
    assert 50 < counters["repeated"] < 200


def test_late_ones_are_overtaken():
    arrived, counters = run(ControlFaults(seed=3, late=0.1))
    assert sorted(arrived) == list(range(1000))
    assert arrived != sorted(arrived)
    assert 50 < counters["late"] < 200


def test_a_seed_tells_what_happens():
    faults = ControlFaults(seed=4, lose=0.1, repeat=0.1, late=0.1)
    assert run(faults) == run(faults)
    assert run(faults) != run(ControlFaults(seed=5, lose=0.1, repeat=0.1, late=0.1))


def test_it_says_how_long_nothing_is_due():
    sends = UnreliableSends(ControlFaults(seed=1, late=1.0))
    assert sends.wait_s(0.0, 5.0) == 5.0
    sends.send(lambda: None, 0.0)
    due = sends.wait_s(0.0, 5.0)
    assert 0 < due <= LATEST_S
    assert sends.wait_s(due + 1, 5.0) == 0.0
