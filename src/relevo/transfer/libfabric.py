"""What the libfabric that was built in offers."""

from __future__ import annotations

from relevo.transfer import _transfer


def libfabric_version() -> str | None:
    """Such as "1.17"; None where it was not built in."""
    return _transfer.libfabric_version() or None


def providers() -> list[str]:
    """Names of the providers that it finds on this machine; ";" joins a layered one's parts."""
    return sorted(set(_transfer.libfabric_providers()))
