"""What a comparison compares: architectures started here, or servers that are there."""

from __future__ import annotations

import argparse
import os
import secrets

from relevo.bench.compare import Comparison
from relevo.bench.prompts import DEFAULT_VOCABULARY
from relevo.bench.report import Report
from relevo.errors import ConfigError
from relevo.launch.model_source import resolve_model


class Started:
    """Architectures on this machine's devices."""

    def __init__(self, options: argparse.Namespace) -> None:
        from relevo.bench.architectures import FORMS, Devices, EngineOptions
        from relevo.bench.subjects import Bench
        from relevo.text.tokenizer import load_tokenizer

        self.model = resolve_model(options.model)
        client = set(options.client_cores)
        cores = [core for core in sorted(os.sched_getaffinity(0)) if core not in client]
        self._devices = Devices.of(options.devices or min(2, len(cores)), cores)
        self._forms = tuple((options.architectures or ",".join(FORMS)).split(","))
        if options.architectures is None and len(self._devices.cores) == 1:
            self._forms = tuple(form for form in FORMS if not form.startswith("all-devices"))
        for form in self._forms:
            if form not in FORMS:
                raise ConfigError("architectures", f"{form!r} is none of {', '.join(FORMS)}")
        if "disaggregated" not in self._forms or len(self._forms) < 2:
            raise ConfigError("architectures", "needs disaggregated and one that is co-located")
        engine = EngineOptions(
            engine=options.engine,
            vllm_arguments=options.vllm_arguments,
            dtype=options.dtype,
            kv_mib=options.kv_memory,
            transport=options.transport,
            handoff_faults=options.faults,
        )
        vocabulary = load_tokenizer(self.model.path, self.model.cache).vocabulary
        self.bench = Bench(
            self.model, engine, vocabulary, _salt(), options.client_cores, options.power_csv
        )
        self.devices = len(self._devices.cores)
        self.context: int | None = None  # seen when one runs

    def compare(self, comparison: Comparison) -> Report:
        return comparison.run(self._devices, self._forms)


def _salt() -> int:
    """Of this comparison; replays add up to some hundreds to it."""
    return secrets.randbelow(1 << 20) * 1000


class Endpoints:
    """Two servers that are there: the first is taken as co-located, the second as disaggregated."""

    def __init__(self, options: argparse.Namespace) -> None:
        from relevo.bench.architectures import EngineOptions
        from relevo.bench.endpoints import discover
        from relevo.bench.subjects import Bench, Endpoint

        if len(options.url) != 2:
            raise ConfigError("url", f"{len(options.url)} given; a comparison needs two")
        self.model = None
        self.devices = options.devices or 2
        self._subjects = []
        contexts = []
        for said, side in zip(options.url, ("colocated", "disaggregated"), strict=True):
            name, equals, url = said.partition("=")
            if not equals or "/" in name:
                name, url = side, said
            found = discover(url, None)
            self._subjects.append(Endpoint(name, side, found.url, found.model))
            contexts.append(found.context)
        models = [subject.model for subject in self._subjects]
        if models[0] != models[1]:
            raise ConfigError("url", f"the servers have different models: {' and '.join(models)}")
        if self._subjects[0].name == self._subjects[1].name:
            raise ConfigError("url", f"both are called {self._subjects[0].name!r}")
        known = [context for context in contexts if context is not None]
        self.context = min(known) if known else None
        self.bench = Bench(
            None,
            EngineOptions(),
            DEFAULT_VOCABULARY,
            _salt(),
            options.client_cores,
            options.power_csv,
        )

    def compare(self, comparison: Comparison) -> Report:
        return comparison.run_subjects(self._subjects)
