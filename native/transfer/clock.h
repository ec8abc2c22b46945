// The one clock of all timelines: CLOCK_MONOTONIC, the same in every process of a host.
#pragma once

#include <cstdint>
#include <ctime>

namespace relevo {

inline uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace relevo
