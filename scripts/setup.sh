#!/usr/bin/env bash
# Makes or updates .venv with all that the project needs, and builds the native core. Quick when
# nothing has changed. PYTHON: the interpreter to use; RELEVO_TORCH: another PyTorch requirement.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/system-packages.sh

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: $python is $("$python" --version); Relevo needs Python 3.11 or newer (set PYTHON)" >&2
  exit 1
fi

stamp=.venv/relevo-setup
wanted=$(cat pyproject.toml constraints.txt CMakeLists.txt scripts/setup.sh \
  $(find native -type f | sort) | sha256sum)$(pwd)${RELEVO_TORCH:-}
[ -e /usr/include/rdma/fabric.h ] && wanted+=" with libfabric"
if [ -x .venv/bin/relevo ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=".venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --upgrade "pip>=25.1"

constraints=constraints.txt
if [ -n "${RELEVO_TORCH:-}" ]; then
  requirement=$RELEVO_TORCH
elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  requirement="torch>=2.9"  # the registry's default build runs on the GPU
else
  requirement=$(grep '^torch' constraints.txt)
fi
if [ "$requirement" != "$(grep '^torch' constraints.txt)" ]; then
  constraints=.venv/constraints.txt
  grep -v '^torch' constraints.txt >"$constraints"
fi
echo "setup: installing Python packages ($requirement)" >&2
$pip install --constraint "$constraints" "$requirement"
$pip install --constraint "$constraints" --group dev
echo "setup: building the native core" >&2
$pip install --constraint "$constraints" --no-build-isolation --editable .
echo "$wanted" >"$stamp"
