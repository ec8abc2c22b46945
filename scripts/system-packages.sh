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
need chromium-headless-shell command -v chromium-headless-shell
[ ${#missing[@]} -eq 0 ] && exit 0

# Without these the rest still works: only the local transport is built, `make check` fails, the test in
# a browser is skipped.
optional() { [[ "$1" =~ ^(libfabric-dev|clang-format|chromium-headless-shell)$ ]]; }

give_up() { # REASON
  echo "setup: $1; these Debian packages are missing: ${missing[*]}" >&2
  echo "setup: install them, then run this again" >&2
  for package in "${missing[@]}"; do optional "$package" || exit 1; done
  exit 0
}

sudo=
command -v apt-get >/dev/null || give_up "no apt-get here"
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || give_up "neither root nor sudo without a password"
  sudo="sudo -n"
fi
echo "setup: installing ${missing[*]}" >&2
{
  $sudo apt-get update -qq &&
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "${missing[@]}" >/dev/null
} || give_up "apt-get failed"
