"""Relevo's KV connector for vLLM: named by `kv_connector_module_path`, it hands KV caches from one
`vllm serve` to another while they are computed. See docs/vllm.md."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from relevo.errors import ConfigError
from relevo.worker.environment import end_with_parent
from relevo.worker.vllm_layout import Caches
from relevo.worker.vllm_plan import PARAMS_KEY, StepPlan
from relevo.worker.vllm_rank import RankConfig, RankHalf, Settings, settings_of
from relevo.worker.vllm_scheduler import SchedulerHalf
from relevo.worker.vllm_stats import RelevoMetrics, RelevoStats

log = logging.getLogger(__name__)

TESTED_VLLM = "0.32"


@dataclass
class StepMetadata(KVConnectorMetadata):
    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """From the rank to the scheduler: where decode sides reach it."""

    endpoint: str


class RelevoConnector(KVConnectorBase_V1, SupportsHMA):
    """One instance lives in the scheduler and one beside the model; each has its half."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = settings_of(transfer.kv_connector_extra_config)
        _check(vllm_config, kv_cache_config, self._settings)
        if self._settings.owner:  # a worker of ours: nothing of it may outlive it
            end_with_parent()
        self._page_tokens: int = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._endpoint = ""
        self._rank: RankHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(self._page_tokens, self._settings.local_prefill_tokens)
            if transfer.kv_load_failure_policy != "recompute":
                log.warning(
                    "kv_load_failure_policy is %r: a request whose hand-off fails will fail too; "
                    'with "recompute" its prompt is computed here',
                    transfer.kv_load_failure_policy,
                )

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A full graph would run without the hook after each layer."""
        return True

    # ---- in the scheduler ----

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        handshake = metadata[0]
        assert isinstance(handshake, Handshake)
        self._endpoint = handshake.endpoint

    def on_new_request(self, request: Any) -> None:
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        computed = {r.req_id: r.num_computed_tokens for r in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        blocks = scheduler_output.kv_connector_block_state
        plan = self._scheduler.plan(
            scheduled=scheduler_output.num_scheduled_tokens,
            computed=computed,
            pages=lambda request: blocks.resolve_block_ids(request)[0],
            preempted=scheduler_output.preempted_req_ids or (),
        )
        return StepMetadata(plan)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.received(
            connector_output.finished_recving or (), connector_output.failed_recving or ()
        )
        self._scheduler.sent(connector_output.finished_sending or ())

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        asked = PARAMS_KEY in (request.kv_transfer_params or {})
        answer = {PARAMS_KEY: {"endpoint": self._endpoint}} if asked else None
        return self._scheduler.finished(request), answer

    # ---- beside the model ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        config = self._vllm_config
        model = config.model_config
        spec = self._kv_cache_config.kv_cache_groups[0].kv_cache_spec
        ordered = dict(sorted(kv_caches.items(), key=lambda item: extract_layer_index(item[0])))
        caches = Caches(
            tensors=ordered,
            page_tokens=self._page_tokens,
            heads=spec.num_kv_heads,
            interior=_interior(ordered, config, spec),
        )
        name = self._settings.name or f"vllm-{config.kv_transfer_config.engine_id[:8]}"
        rank_config = RankConfig(
            name=name,
            model=f"{Path(model.model).name} ({model.hf_config.model_type}, {len(ordered)} layers, "
            f"{model.get_hidden_size()} wide, {model.get_vocab_size()} tokens)",
            max_tokens=model.max_model_len,
            settings=self._settings,
        )
        self._rank = RankHalf(rank_config, caches)
        log.info("%s hands off at %s", name, self._rank.endpoint)

    def get_handshake_metadata(self) -> Handshake | None:
        return Handshake(self._rank.endpoint) if self._rank else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, StepMetadata)
        self._running.preempt(kv_connector_metadata.plan)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata)
        self._running.begin(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """What is to come was asked for when the step began."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests are scheduled only once all has landed."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        self._running.layer(layer_name)

    def wait_for_save(self) -> None:
        self._running.end()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = self._running.results()
        return KVConnectorTransferResults(
            finished_sending=results.sent,
            finished_recving=results.received,
            failed_recving=results.failed,
        )

    def get_kv_connector_stats(self) -> RelevoStats | None:
        changes = self._running.changes() if self._rank else {}
        return RelevoStats(data=changes) if changes else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RelevoStats:
        return RelevoStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> RelevoMetrics:
        return RelevoMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._rank is not None:
            self._rank.stop()

    @property
    def _running(self) -> RankHalf:
        assert self._rank is not None, "a step before the KV caches were registered"
        return self._rank


def _check(config: VllmConfig, caches: KVCacheConfig, settings: Settings) -> None:
    """Raises ConfigError for what cannot work."""
    version = vllm.__version__
    if not version.startswith(f"{TESTED_VLLM}.") and not settings.untested_vllm:
        raise ConfigError(
            "vllm",
            f"this is vLLM {version}; Relevo is tested with {TESTED_VLLM} "
            '(to try it all the same: "untested_vllm": true in kv_connector_extra_config)',
        )
    parallel = config.parallel_config
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(parallel, key) != 1:
            raise ConfigError(key, f"{getattr(parallel, key)}; only 1 as yet")
    groups = caches.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise ConfigError("model", f"its KV caches are {kinds}; only full attention as yet")


def _interior(caches: dict[str, torch.Tensor], config: VllmConfig, spec: FullAttentionSpec) -> str:
    """Two pools with equal tags hold the same bytes for the same tokens."""
    tensor = next(iter(caches.values()))
    version = ".".join(vllm.__version__.split(".")[:2])
    parts = [f"vllm{version}", tensor.device.type, str(tensor.dtype).removeprefix("torch.")]
    if tensor.device.type == "cpu":
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        cache_dtype = config.cache_config.cache_dtype
        parts.append(
            _get_attn_isa(config.model_config.dtype, spec.block_size, spec.head_size, cache_dtype)
        )
    parts.append("x".join(str(size) for size in tensor.shape[1:]))
    return "/".join(parts)
