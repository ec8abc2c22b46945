// Eventfds: how one thread or process wakes another.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace relevo {

inline void signal_eventfd(int fd) {
  uint64_t one = 1;
  // Fails only when the counter is full, and then its reader is awake already.
  [[maybe_unused]] ssize_t written = ::write(fd, &one, sizeof(one));
}

inline void clear_eventfd(int fd) {
  uint64_t value;
  [[maybe_unused]] ssize_t count = ::read(fd, &value, sizeof(value));
}

}  // namespace relevo
