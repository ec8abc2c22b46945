// The native core's own tests: two engines in one process, over every driver that is built. Made to
// be run under AddressSanitizer + UBSan and under ThreadSanitizer (`make sanitize`), so they favour
// what threads do to each other over what a single call returns; that is tested from Python.

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../transfer/clock.h"
#include "../transfer/engine.h"

using namespace relevo;

namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kPages = 64;
constexpr uint32_t kLayers = 4;
constexpr uint64_t kDeadlineNs = 20'000'000'000;

void check(bool condition, const char* what, int line) {
  if (condition) return;
  std::fprintf(stderr, "transfer_test.cpp:%d: %s\n", line, what);
  std::exit(1);
}
#define CHECK(condition) check(condition, #condition, __LINE__)

std::unique_ptr<Driver> make_sound_driver([[maybe_unused]] const std::string& name) {
#ifdef RELEVO_LIBFABRIC
  if (name == "tcp") return make_libfabric_driver("tcp", "127.0.0.1");
#endif
  return make_local_driver();
}

// "faulty" is the local driver with late, failing and stalled writes.
std::unique_ptr<Driver> make_driver(const std::string& name) {
  if (name != "faulty") return make_sound_driver(name);
  return make_faulty_driver(make_sound_driver("local"),
                            {.seed = 7, .delay_us = 300, .error = 0.001, .stall = 0.01});
}

struct Side {
  explicit Side(const std::string& driver) {
    Status status;
    pool = MemoryFile::create("pool", kLayers * kPages * kPage, &status);
    CHECK(status.ok());
    auto control = MemoryFile::create("control", sizeof(CounterMemory), &status);
    engine = std::make_unique<TransferEngine>(make_driver(driver), std::move(control));
    CHECK(engine->open().ok());
    CHECK(engine->register_region({0, pool->data(), pool->size(), pool->fd()}).ok());
    engine->start();
  }
  ~Side() { engine->stop(); }

  std::byte* page(uint32_t layer, uint32_t page) {
    return pool->data() + (layer * kPages + page) * kPage;
  }

  // The first event of this kind; others are dropped.
  TransferEvent wait(TransferEvent::Kind kind) {
    uint64_t deadline = monotonic_ns() + kDeadlineNs;
    while (monotonic_ns() < deadline) {
      for (TransferEvent& event : engine->poll_events()) {
        if (event.kind == kind) return event;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    CHECK(!"the event did not come");
    return {};
  }

  std::unique_ptr<MemoryFile> pool;
  std::unique_ptr<TransferEngine> engine;
};

std::vector<LayerMap> layer_maps() {
  std::vector<LayerMap> maps;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    uint64_t base = layer * kPages * kPage;
    maps.push_back({0, 0, base, kPage, base, kPage, {{0, 0, kPage}}});
  }
  return maps;
}

struct Pair {
  explicit Pair(const std::string& driver) : source(driver), target(driver) { connect(); }

  void connect() {
    link += 1;
    target.engine->expect(link);
    source.engine->connect(link, target.engine->address(), layer_maps(),
                           monotonic_ns() + kDeadlineNs);
    source.wait(TransferEvent::Kind::kLinkUp);
  }

  Push push(HandoffId handoff, uint32_t slot, uint32_t first, uint32_t pages) {
    Push out;
    out.handoff = handoff;
    out.link = link;
    out.slot = slot;
    for (uint32_t i = 0; i < pages; ++i) out.layered.push_back({first + i, first + i});
    out.last = true;
    return out;
  }

  void step(std::vector<Push> pushes) {
    source.engine->open_step(std::move(pushes));
    for (uint32_t layer = 0; layer < kLayers; ++layer) source.engine->bump();
    source.engine->end_step(true);
  }

  LinkId link = 0;
  Side source;
  Side target;
};

void until(const std::function<bool()>& done) {
  uint64_t deadline = monotonic_ns() + kDeadlineNs;
  while (!done()) {
    CHECK(monotonic_ns() < deadline);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// Pages are written by one thread while others read counters, events and statistics.
void pages_land(const std::string& driver) {
  Pair pair(driver);
  for (uint32_t round = 0; round < 20; ++round) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t page = 0; page < kPages; ++page) {
        std::memset(pair.source.page(layer, page), static_cast<int>(round + page + layer), kPage);
      }
    }
    CHECK(pair.target.engine->counters().arm(round, 0, kLayers * kPages));
    pair.source.engine->open_handoff(round);
    pair.step({pair.push(round, round, 0, kPages)});
    until([&] { return !pair.target.engine->counters().poll().empty(); });
    pair.target.engine->counters().disarm(round);
    CHECK(std::memcmp(pair.target.pool->data(), pair.source.pool->data(),
                      pair.source.pool->size()) == 0);
    CHECK(pair.source.engine->statistics().writes.load() >= round);
    pair.source.wait(TransferEvent::Kind::kPushed);
  }
}

// One thread steps, one withdraws, one polls, all at once.
void withdrawn_while_pushed(const std::string& driver) {
  Pair pair(driver);
  for (HandoffId handoff = 1; handoff <= 60; ++handoff) {
    uint32_t slot = static_cast<uint32_t>(handoff);
    CHECK(pair.target.engine->counters().arm(slot, 0, kLayers * kPages));
    pair.source.engine->open_handoff(handoff);
    std::thread withdrawing([&] { pair.source.engine->withdraw(handoff); });
    pair.step({pair.push(handoff, slot, 0, kPages)});
    withdrawing.join();
    pair.source.wait(TransferEvent::Kind::kDrained);
    pair.target.engine->counters().disarm(slot);
  }
}

// The target closes the link in mid-push; afterwards nothing may change any more.
void closed_while_written(const std::string& driver) {
  Pair pair(driver);
  for (HandoffId handoff = 1; handoff <= 20; ++handoff) {
    uint32_t slot = static_cast<uint32_t>(handoff);
    CHECK(pair.target.engine->counters().arm(slot, 0, kLayers * kPages));
    pair.source.engine->open_handoff(handoff);
    std::thread stepping([&] { pair.step({pair.push(handoff, slot, 0, kPages)}); });
    pair.target.engine->close_link(pair.link);
    pair.target.wait(TransferEvent::Kind::kLinkClosed);
    uint32_t counted = pair.target.engine->counters().counted(slot);
    stepping.join();
    pair.source.engine->close_link(pair.link);
    pair.source.wait(TransferEvent::Kind::kLinkClosed);
    CHECK(pair.target.engine->counters().counted(slot) == counted);
    pair.target.engine->counters().disarm(slot);
    pair.source.engine->withdraw(handoff);
    pair.connect();
  }
}

// An engine that is stopped with everything under way.
void stopped_in_the_middle(const std::string& driver) {
  for (int round = 0; round < 5; ++round) {
    Pair pair(driver);
    pair.target.engine->counters().arm(1, 0, kLayers * kPages);
    pair.source.engine->open_handoff(1);
    pair.step({pair.push(1, 1, 0, kPages)});
  }
}

}  // namespace

int main() {
  using Test = void (*)(const std::string&);
  const std::vector<Test> all{pages_land, withdrawn_while_pushed, closed_while_written,
                              stopped_in_the_middle};
  std::vector<std::pair<std::string, std::vector<Test>>> runs{{"local", all}};
#ifdef RELEVO_LIBFABRIC
  runs.push_back({"tcp", all});
#endif
  // Not where every page is waited for: a write that fails never lands.
  runs.push_back({"faulty", {withdrawn_while_pushed, closed_while_written, stopped_in_the_middle}});
  size_t count = 0;
  for (const auto& [driver, tests] : runs) {
    for (Test test : tests) test(driver);
    count += tests.size();
  }
  std::printf("%zu passed, 0 failed\n", count);
  return 0;
}
