"""Bytes and pages over the native transfer core. Knows links, regions and counters, not KV."""
