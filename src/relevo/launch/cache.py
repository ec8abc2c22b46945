"""Where models and what is derived from them are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$RELEVO_CACHE, else the user's cache folder."""
    own = os.environ.get("RELEVO_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relevo"
