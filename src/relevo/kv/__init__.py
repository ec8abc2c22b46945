"""Arithmetic on KV caches: layouts, shards, copy plans, pages, hashes. No torch, no I/O."""
