"""What each command does."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable

from relevo.cli.options import worker_arguments
from relevo.errors import ConfigError, RelevoError
from relevo.launch.child import StatusPipe, take_children_along
from relevo.launch.model_source import ModelSource, resolve_model


def run(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises RelevoError."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Either stops what was started. A shell's background jobs would ignore SIGINT.
    _on_stop(_interrupt)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "serve": _serve,
        "worker": _worker,
        "router": _router,
        "proxy": _proxy,
        "demo": _demo,
        "doctor": _doctor,
        "handoffs": _handoffs,
        "release": _release,
        "bench": _bench,
    }
    try:
        return commands[options.command](options)
    finally:
        # Nothing is left to stop, and what the interpreter runs on its way out catches nothing.
        _on_stop(signal.SIG_DFL)


def _serve(options: argparse.Namespace) -> int:
    from relevo.launch.local import DeploymentConfig, LocalDeployment

    split = 0 if options.mixed else 1  # --mixed alone means a co-located deployment
    config = DeploymentConfig(
        model=resolve_model(options.model),
        prefill=split if options.prefill is None else options.prefill,
        decode=split if options.decode is None else options.decode,
        mixed=options.mixed,
        transport=options.transport,
        host=options.host,
        port=options.port,
        worker_arguments=worker_arguments(options),
    )
    with LocalDeployment(config, _print_progress) as deployment:
        print(f"relevo: serving {config.model.name} at {deployment.url}/v1", file=sys.stderr)
        ended = deployment.watch()
    print(f"relevo: {ended}; stopped the rest", file=sys.stderr)
    return 1


def _on_stop(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _print_progress(who: str, what: str) -> None:
    print(f"relevo: {who}: {what}", file=sys.stderr)


def _as_child(body: Callable[[StatusPipe], None]) -> int:
    """Runs a supervised process and tells the supervisor what it failed of."""
    take_children_along()
    # Until it serves and stops in its own way: nothing has to be cleaned up, and an exception
    # raised from a handler gets lost in libraries that load the model.
    _on_stop(signal.SIG_DFL)
    status = StatusPipe()
    try:
        body(status)
    except RelevoError as error:
        key = error.key if isinstance(error, ConfigError) else ""
        message = str(error).removeprefix(f"{key}: ") if key else str(error)
        status.say("failed", kind=type(error).__name__, key=key, what=message)
        raise
    return 0


def _named(options: argparse.Namespace) -> ModelSource:
    source = resolve_model(options.model)
    if options.model_name is None:
        return source
    return ModelSource(options.model_name, source.path, source.cache)


def _router(options: argparse.Namespace) -> int:
    import asyncio

    def body(status: StatusPipe) -> None:
        from relevo.server.process import run_router

        model = _named(options)
        asyncio.run(
            run_router(
                model.path,
                model.cache,
                name=model.name,
                host=options.host,
                port=options.port,
                control=options.control,
                on_ready=lambda url, control: status.say("ready", url=url, control=control),
            )
        )

    return _as_child(body)


def _worker(options: argparse.Namespace) -> int:
    return _vllm_worker(options) if options.engine == "vllm" else _embedded_worker(options)


def _vllm_worker(options: argparse.Namespace) -> int:
    def body(status: StatusPipe) -> None:
        import importlib.util
        import os

        from relevo.types import Role

        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "engine", "vLLM is not installed here; scripts/setup-vllm.sh makes .venv-vllm"
            )
        if options.hold_handoffs:
            raise ConfigError("hold-handoffs", "not with vLLM")
        model = _named(options)
        from relevo.cli.export import huggingface_folder
        from relevo.worker.vllm_worker import VllmWorker, VllmWorkerConfig

        cores = options.cores or ",".join(map(str, sorted(os.sched_getaffinity(0))))
        config = VllmWorkerConfig(
            name=options.name,
            role=Role(options.role),
            router=options.router,
            model=huggingface_folder(model),
            model_name=model.name,
            dtype=options.dtype,
            kv_bytes=options.kv_memory << 20,
            arguments=options.vllm_arguments,
            cores=tuple(int(core) for core in cores.split(",")),
            transport=options.transport,
            host=options.host,
            local_prefill_tokens=options.local_prefill_tokens,
            faults=options.faults,
            verify_kv=options.verify_kv,
        )
        VllmWorker(config, lambda: status.say("ready", what="ready")).run()

    return _as_child(body)


def _embedded_worker(options: argparse.Namespace) -> int:
    def body(status: StatusPipe) -> None:
        from relevo.worker.environment import prepare_process

        cores = prepare_process(options.cores)  # before torch is imported
        from relevo.engine.engine import EngineConfig
        from relevo.types import Role
        from relevo.worker.worker import Worker, WorkerConfig

        model = _named(options)
        said = [-1]

        def progress(what: str, fraction: float) -> None:
            tenth = int(fraction * 10)
            if tenth != said[0]:
                said[0] = tenth
                status.say("loading", what=f"{what} {fraction:.0%}")

        config = WorkerConfig(
            name=options.name,
            role=Role(options.role),
            router=options.router,
            model_name=model.name,
            transport=options.transport,
            host=options.host,
            faults=options.faults,
            verify_kv=options.verify_kv,
            hold_handoffs=options.hold_handoffs,
            engine=EngineConfig(
                model=model.path,
                cache=model.cache,
                dtype=options.dtype,
                device=options.device,
                threads=cores,
                pool_bytes=options.kv_memory << 20,
                page_tokens=options.page_tokens,
                step_tokens=options.step_tokens,
                max_running=options.max_running,
                local_prefill_tokens=options.local_prefill_tokens,
            ),
        )
        Worker(config, progress, lambda: status.say("ready", what="ready")).run()

    return _as_child(body)


def _demo(options: argparse.Namespace) -> int:
    from relevo.cli.demo import run_demo

    return run_demo()


def _handoffs(options: argparse.Namespace) -> int:
    from relevo.cli.handoffs import list_handoffs

    return list_handoffs(options.url)


def _release(options: argparse.Namespace) -> int:
    from relevo.cli.handoffs import release_handoff

    return release_handoff(options.url, options.id)


def _proxy(options: argparse.Namespace) -> int:
    import asyncio

    from relevo.server.process import run_proxy

    def ready(url: str) -> None:
        print(f"relevo: proxy at {url}/v1", file=sys.stderr, flush=True)

    servers = (options.prefill, options.decode)
    asyncio.run(run_proxy(*servers, options.host, options.port, ready))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from relevo.cli.doctor import run_doctor

    return run_doctor(options.transport)


def _bench(options: argparse.Namespace) -> int:
    from relevo.cli.bench import run_benchmark

    return run_benchmark(options)
