"""Bytes and pages over the native transfer core. Knows links, regions and counters, not KV."""

import os

# libfabric brings a library of old InfiniPath cards, which on loading takes SIGTERM and others from
# its process: a vLLM server that is asked to stop would crash instead.
os.environ.setdefault("IPATH_NO_BACKTRACE", "1")
