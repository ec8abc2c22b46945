#!/usr/bin/env bash
# Builds the native core's own tests under AddressSanitizer + UBSan and under ThreadSanitizer, and
# runs them. libfabric is left out under ThreadSanitizer: its own locks are not instrumented.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/sanitize
mkdir -p "$out"
sources=(native/tests/transfer_test.cpp native/transfer/{counters,engine,engine_writes,faulty_driver,handshake,local_driver,memory_file,push}.cpp)
libfabric=()
[ -e /usr/include/rdma/fabric.h ] &&
  libfabric=(-DRELEVO_LIBFABRIC native/transfer/libfabric_{driver,links}.cpp -lfabric)
flags=(-std=c++20 -g -O1 -Wall -Wextra -fno-omit-frame-pointer -pthread)

c++ "${flags[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all \
  "${sources[@]}" "${libfabric[@]}" -o "$out/address"
c++ "${flags[@]}" -fsanitize=thread "${sources[@]}" -o "$out/thread"
echo "address and undefined behaviour:"
"$out/address"
echo "threads:"
TSAN_OPTIONS=halt_on_error=1 "$out/thread"
