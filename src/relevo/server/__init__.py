"""The OpenAI-compatible HTTP API, metrics and timelines."""
