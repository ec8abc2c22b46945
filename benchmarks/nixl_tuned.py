"""vLLM's NixlConnector without NIXL's progress thread, which otherwise takes a core of two."""

import functools
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector

if not isinstance(base_worker.nixl_agent_config, functools.partial):
    config: Any = base_worker.nixl_agent_config
    base_worker.nixl_agent_config = functools.partial(config, enable_prog_thread=False)


class TunedNixlConnector(NixlConnector):
    """Named by kv_connector_module_path; all that differs is above."""
