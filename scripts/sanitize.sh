#!/usr/bin/env bash
# Builds the native tests of the transfer engine and of the kernels under AddressSanitizer + UBSan
# and under ThreadSanitizer, and runs them. libfabric is left out under ThreadSanitizer: its own
# locks are not instrumented.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/sanitize
mkdir -p "$out"
transfer=(native/tests/transfer_test.cpp native/transfer/{counters,engine,engine_writes,faulty_driver,handshake,local_driver,memory_file,push}.cpp)
kernels=(native/tests/kernels_test.cpp native/kernels/{attention,linear,thread_pool}.cpp)
libfabric=()
[ -e /usr/include/rdma/fabric.h ] &&
  libfabric=(-DRELEVO_LIBFABRIC native/transfer/libfabric_{driver,links}.cpp -lfabric)
flags=(-std=c++20 -g -O1 -Wall -Wextra -fno-omit-frame-pointer -pthread)
address=(-fsanitize=address,undefined -fno-sanitize-recover=all)

c++ "${flags[@]}" "${address[@]}" "${transfer[@]}" "${libfabric[@]}" -o "$out/transfer-address"
c++ "${flags[@]}" "${address[@]}" "${kernels[@]}" -o "$out/kernels-address"
c++ "${flags[@]}" -fsanitize=thread "${transfer[@]}" -o "$out/transfer-thread"
c++ "${flags[@]}" -fsanitize=thread "${kernels[@]}" -o "$out/kernels-thread"
export TSAN_OPTIONS=halt_on_error=1
for sanitizer in address thread; do
  for part in transfer kernels; do
    echo "$part, $sanitizer:"
    "$out/$part-$sanitizer"
  done
done
