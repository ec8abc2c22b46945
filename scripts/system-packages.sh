#!/usr/bin/env bash
# Installs the Debian packages that are missing, or says which they are.
set -euo pipefail

missing=()
need() { # PACKAGE TEST...
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
python=${PYTHON:-python3}
need g++ command -v c++
need python3-venv "$python" -c 'import ensurepip, venv'
need python3-dev "$python" -c \
  'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
need libfabric-dev test -e /usr/include/rdma/fabric.h
need clang-format command -v clang-format
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
  if ! command -v apt-get >/dev/null || ! sudo -n true 2>/dev/null; then
    echo "setup: these Debian packages are missing: ${missing[*]}" >&2
    echo "setup: install them, then run this again (without libfabric-dev only the local" \
      "transport is built; without clang-format only 'make check' fails)" >&2
    for package in "${missing[@]}"; do
      case $package in libfabric-dev | clang-format) ;; *) exit 1 ;; esac
    done
    exit 0
  fi
  sudo="sudo -n"
fi
echo "setup: installing ${missing[*]}" >&2
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
