// The counter table: how a decoder knows, without any message, that all pages have landed.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "immediate.h"
#include "memory_file.h"

namespace relevo {

constexpr uint32_t kGates = 256;

// One counter. `word` is generation:8 | state:8 | expected:24 | count:24 and changes only by
// compare-and-swap, so that a late write of an older generation can never be counted.
struct alignas(64) Counter {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> reached_ns;  // CLOCK_MONOTONIC, set before the count that completes it
};

// What stands between a same-host writer and our pages. The writer holds `lock` (robust) for each
// piece that it copies and first looks whether its link is the one `admitted`; the owner of the
// pages only ever tries the lock. Link ids are never used twice, so a gate can serve another link
// once its lock has been had.
struct alignas(64) Gate {
  pthread_mutex_t lock;
  std::atomic<uint64_t> admitted;  // link id; 0 = shut
};

// Layout of the shared control file. All-zero bytes are a valid idle counter.
struct CounterMemory {
  std::atomic<uint64_t> stale;     // writes of an older generation, or to an idle slot: dropped
  std::atomic<uint64_t> overshot;  // writes that counted past what was expected
  Counter counters[kSlots];
  Gate gates[kGates];
};

enum class Count { kCounted, kReached, kStale, kOvershot };

// Adds a landed write to its counter. Called by whoever delivered the write: the target's native
// thread, or (local driver) the writer's, in its own process. Lock-free.
Count count_parts(CounterMemory& memory, Immediate immediate);

// What became of an armed slot: complete, or broken because more parts came than were asked for.
struct CounterEvent {
  uint32_t slot;
  uint32_t generation;
  uint64_t reached_ns;
  bool overshot;
};

// The owner's view. Thread-safe. Owns the control file, which must outlive the driver.
class CounterTable {
 public:
  explicit CounterTable(std::unique_ptr<MemoryFile> file);
  ~CounterTable();

  CounterMemory& memory() const { return *memory_; }
  const MemoryFile& file() const { return *file_; }

  // From now on `expected` parts (1 .. 2^24-1) of this generation make the slot complete.
  // False if the slot is armed already or a value is out of range.
  bool arm(uint32_t slot, uint32_t generation, uint32_t expected);

  // Whatever comes for the slot from now on is stale. Harmless on an idle slot.
  void disarm(uint32_t slot);

  // How many parts have come, for inspection. 0 for an idle slot.
  uint32_t counted(uint32_t slot) const;

  // Slots that completed or overshot since the last call, each reported once.
  std::vector<CounterEvent> poll();

 private:
  std::unique_ptr<MemoryFile> file_;
  CounterMemory* memory_;
  std::mutex mutex_;             // guards armed_
  std::vector<uint32_t> armed_;  // not yet reported
};

}  // namespace relevo
