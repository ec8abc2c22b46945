import pytest

from relevo.bench.architectures import (
    CHUNKS,
    FORMS,
    WHOLE,
    Architecture,
    Devices,
    EngineOptions,
    candidates,
    disaggregated,
    threshold_variants,
)
from relevo.bench.calibrate import Pace, fitting_chunk
from relevo.bench.metrics import Budgets
from relevo.bench.tuning import chunk_sizes
from relevo.errors import ConfigError
from relevo.launch.model_source import ModelSource

MODEL = ModelSource("m", path="m", cache="c")


def option(config, name):
    arguments = config.worker_arguments
    return arguments[arguments.index(name) + 1]


@pytest.mark.parametrize(("count", "cores"), [(1, 2), (2, 2), (2, 8), (3, 3), (4, 8)])
def test_every_candidate_gets_all_devices_and_no_more(count, cores):
    devices = Devices.of(count, range(cores))
    for form in FORMS:
        names = set()
        for a in candidates(devices, form, CHUNKS):
            used = {core for worker in a.worker_cores for core in worker}
            assert used == set(devices.all)
            assert len(a.worker_cores) == a.prefill + a.decode + a.mixed
            names.add(a.name)
        assert len(names) == len(candidates(devices, form, CHUNKS))


def test_kv_memory_is_that_of_the_devices_however_many_workers_share_it():
    devices = Devices.of(2, range(8))
    for form in FORMS:
        for a in candidates(devices, form, CHUNKS):
            config = EngineOptions(kv_mib=100).deployment(MODEL, a)
            assert int(option(config, "--kv-memory")) * len(config.roles()) == 200
    shared = EngineOptions(kv_mib=100).deployment(MODEL, disaggregated(Devices.of(1, [0])))
    assert option(shared, "--kv-memory") == "50"


def test_splits_of_four_devices_and_cores_to_shift():
    four = [a.name for a in candidates(Devices.of(4, range(4)), "disaggregated", CHUNKS)]
    assert four == ["disaggregated-1:3", "disaggregated-2:2", "disaggregated-3:1"]
    eight = [a.name for a in candidates(Devices.of(2, range(8)), "disaggregated", CHUNKS)]
    assert eight == [
        "disaggregated-1:1", "disaggregated-1:1-cores-2:6", "disaggregated-1:1-cores-6:2",
    ]  # fmt: skip
    variants = threshold_variants(disaggregated(Devices.of(2, range(2))))
    assert [a.name for a in variants] == ["disaggregated-1:1-local-256"]


def test_chunks_are_each_engines_own_option():
    chunked = candidates(Devices.of(2, range(2)), "replicas-chunked", CHUNKS)[0]
    assert chunked.name == "replicas-chunked-128"
    assert option(EngineOptions().deployment(MODEL, chunked), "--step-tokens") == "128"
    vllm = EngineOptions(engine="vllm", vllm_arguments="--enforce-eager")
    assert (
        "--vllm-arguments=--max-num-seqs 128 --max-num-batched-tokens 128 --enforce-eager"
        in vllm.deployment(MODEL, chunked).worker_arguments
    )


def test_vllm_has_no_more_sequences_than_tokens_in_a_step():
    small = candidates(Devices.of(2, range(2)), "replicas-chunked", [32])[0]
    config = EngineOptions(engine="vllm").deployment(MODEL, small)
    assert (
        "--vllm-arguments=--max-num-seqs 32 --max-num-batched-tokens 32" in config.worker_arguments
    )


@pytest.mark.parametrize(
    ("prompt_ms", "step_ms", "itl_ms", "fitting"),
    [
        (500.0, 12.0, 60.0, 32),  # 1,024 tokens/s: 49 in the 48 ms that are left
        (500.0, 12.0, 75.0, 64),  # 64.5
        (500.0, 12.0, 10.0, 16),  # none is small enough
        (5.0, 12.0, 60.0, 4096),  # 4,915
    ],
)
def test_a_chunk_that_keeps_the_gaps_budget_is_tried(prompt_ms, step_ms, itl_ms, fitting):
    pace, budgets = Pace(512, prompt_ms, step_ms), Budgets(1000, 30, itl_ms)
    assert fitting_chunk(pace, budgets) == fitting
    assert chunk_sizes(pace, budgets, quick=True) == sorted({fitting, 128, 512})


def test_faults_of_hand_offs_are_for_those_who_hand_off():
    slow = EngineOptions(handoff_faults="rate=1")
    devices = Devices.of(2, range(2))
    assert option(slow.deployment(MODEL, disaggregated(devices)), "--faults") == "rate=1"
    whole = candidates(devices, "replicas-whole", CHUNKS)[0]
    assert whole.chunk == WHOLE
    assert "--faults" not in slow.deployment(MODEL, whole).worker_arguments


def test_what_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="'replica' is none of replicas-whole"):
        candidates(Devices.of(1, [0]), "replica", CHUNKS)
    with pytest.raises(ConfigError, match="3 is not between 1 and 2"):
        Devices.of(3, [0, 1])
    with pytest.raises(ConfigError, match="for each worker"):
        EngineOptions().deployment(MODEL, Architecture("x", 1, 1, 0, ((0,),), 2))
