#include "counters.h"

#include <algorithm>
#include <new>

#include "clock.h"

namespace relevo {
namespace {

constexpr uint32_t kLimit = 1u << 24;

enum State : uint64_t { kIdle = 0, kArmed = 1, kBroken = 2 };

struct Word {
  uint64_t generation, state, expected, count;

  static Word unpack(uint64_t bits) {
    return {bits >> 56, (bits >> 48) & 0xff, (bits >> 24) & (kLimit - 1), bits & (kLimit - 1)};
  }
  uint64_t pack() const { return generation << 56 | state << 48 | expected << 24 | count; }
};

}  // namespace

Count count_parts(CounterMemory& memory, Immediate immediate) {
  Counter& counter = memory.counters[immediate.slot];
  uint64_t seen = counter.word.load(std::memory_order_acquire);
  for (;;) {
    Word word = Word::unpack(seen);
    if (word.state == kIdle || word.generation != immediate.generation) {
      memory.stale.fetch_add(1, std::memory_order_relaxed);
      return Count::kStale;
    }
    bool over = word.count + immediate.parts > word.expected;
    if (over) {
      word.state = kBroken;
    } else {
      word.count += immediate.parts;
    }
    bool reached = !over && word.count == word.expected;
    if (reached) counter.reached_ns.store(monotonic_ns(), std::memory_order_relaxed);
    // Release: the bytes of this write are visible to whoever reads the new count.
    if (!counter.word.compare_exchange_weak(seen, word.pack(), std::memory_order_acq_rel)) continue;
    if (over) {
      memory.overshot.fetch_add(1, std::memory_order_relaxed);
      return Count::kOvershot;
    }
    return reached ? Count::kReached : Count::kCounted;
  }
}

CounterTable::CounterTable(std::unique_ptr<MemoryFile> file)
    : file_(std::move(file)), memory_(new (file_->data()) CounterMemory) {
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  for (Gate& gate : memory_->gates) {
    pthread_mutex_init(&gate.lock, &robust);
    gate.admitted.store(0, std::memory_order_relaxed);
  }
  pthread_mutexattr_destroy(&robust);
}

CounterTable::~CounterTable() = default;

bool CounterTable::arm(uint32_t slot, uint32_t generation, uint32_t expected) {
  if (slot >= kSlots || generation >= kGenerations || expected == 0 || expected >= kLimit) {
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Counter& counter = memory_->counters[slot];
  if (Word::unpack(counter.word.load(std::memory_order_acquire)).state != kIdle) return false;
  counter.reached_ns.store(0, std::memory_order_relaxed);
  counter.word.store(Word{generation, kArmed, expected, 0}.pack(), std::memory_order_release);
  armed_.push_back(slot);
  return true;
}

void CounterTable::disarm(uint32_t slot) {
  if (slot >= kSlots) return;
  std::lock_guard<std::mutex> lock(mutex_);
  memory_->counters[slot].word.store(0, std::memory_order_release);
  std::erase(armed_, slot);
}

uint32_t CounterTable::counted(uint32_t slot) const {
  if (slot >= kSlots) return 0;
  uint64_t bits = memory_->counters[slot].word.load(std::memory_order_acquire);
  return static_cast<uint32_t>(Word::unpack(bits).count);
}

std::vector<CounterEvent> CounterTable::poll() {
  std::vector<CounterEvent> events;
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(armed_, [&](uint32_t slot) {
    const Counter& counter = memory_->counters[slot];
    Word word = Word::unpack(counter.word.load(std::memory_order_acquire));
    bool overshot = word.state == kBroken;
    if (!overshot && word.count != word.expected) return false;
    events.push_back({slot, static_cast<uint32_t>(word.generation),
                      counter.reached_ns.load(std::memory_order_relaxed), overshot});
    return true;
  });
  return events;
}

}  // namespace relevo
