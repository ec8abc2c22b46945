"""Relevo serves LLMs with prefill and decode in separate workers."""

__version__ = "0.1.0"
