// The transfer engine: one native thread that owns the driver and runs push plans.
//
// Threads: `bump` is called by the engine loop's thread only; everything else by any thread.
// Python hears of events through two eventfds: `event_fd` (poll_events) and `counter_fd`
// (CounterTable::poll). Nothing spins when idle: the thread sleeps on the driver's descriptors and
// on `wake_fd_`.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "driver.h"
#include "handshake.h"
#include "push.h"

namespace relevo {

// A failure of the engine's own, as opposed to a provider's.
inline Status engine_failure(const char* operation, int code, const char* detail) {
  return Status::failure("engine", operation, code, detail);
}

struct LayerPost {
  uint64_t computed_ns;  // when the layer counter passed it
  uint64_t posted_ns;    // when its writes were queued
};

constexpr uint32_t kMaxLayers = 1024;

// What Python is told. Failures are reported only after everything posted has drained.
struct TransferEvent {
  enum class Kind {
    kLinkUp,
    kLinkDown,
    kLinkClosed,
    kPushed,   // all writes of one hand-off's push in one step are complete
    kDrained,  // a withdrawn hand-off has nothing in flight and never will again
    kFailed,   // a write failed; as drained, with `status`
  };
  Kind kind;
  LinkId link = 0;
  HandoffId handoff = 0;
  uint64_t step = 0;
  uint64_t at_ns = 0;
  uint64_t writes = 0;
  uint64_t parts = 0;
  uint64_t bytes = 0;
  bool last = false;
  std::vector<LayerPost> layers = {};
  Status status = {};
};

// Writes that failed of the same thing.
struct ErrorCount {
  std::string operation;
  int code;
  uint64_t count;
};

// Written by the native thread, read by any.
class Statistics {
 public:
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> parts{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> in_flight{0};       // writes posted and not over
  std::atomic<uint64_t> retries{0};         // writes that the provider did not take at first
  std::atomic<uint64_t> refused_pushes{0};  // pushes of hand-offs that are not open

  void count_error(const Status& status);
  std::vector<ErrorCount> errors() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> errors_;  // by operation and code
};

class TransferEngine {
 public:
  TransferEngine(std::unique_ptr<Driver> driver, std::unique_ptr<MemoryFile> control);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // Before start: opens the driver, then regions. Their memory must outlive this object.
  Status open();
  Status register_region(const Region& region);
  // After start.
  const std::vector<std::byte>& address() const { return address_; }
  void start();
  // Ends the thread; links are dropped without waiting for peers. Idempotent.
  void stop();

  CounterTable& counters() { return counters_; }
  int event_fd() const { return event_fd_.get(); }
  int counter_fd() const { return counter_fd_.get(); }
  const Statistics& statistics() const { return statistics_; }

  void expect(LinkId link);
  // `layers` maps every layer, in the order in which the layer counter passes them.
  void connect(LinkId link, std::vector<std::byte> address, std::vector<LayerMap> layers,
               uint64_t deadline_ns);
  void close_link(LinkId link);

  // A hand-off may be pushed between open and (withdraw | a push marked last | failure). Pushes
  // of any other id are refused silently, so a late step can never write for a withdrawn one.
  void open_handoff(HandoffId handoff);
  // kDrained follows, also for an id that is not open.
  void withdraw(HandoffId handoff);

  // Steps: open, bump once per layer, then commit or abort before the next opens. Pushes of an
  // aborted step that still lacked layers fail.
  uint64_t open_step(std::vector<Push> pushes);
  // From any thread. Joins pushes to the step that is open, also after its first bumps; the caller
  // sees to it that the step is not ended meanwhile. With nothing layered: at any time.
  void add_pushes(std::vector<Push> pushes);
  void bump();
  void end_step(bool commit);

  std::vector<TransferEvent> poll_events();

 private:
  struct Expect {
    LinkId link;
  };
  struct Connect {
    LinkId link;
    std::vector<std::byte> address;
    std::vector<LayerMap> layers;
    uint64_t deadline_ns;
  };
  struct CloseLink {
    LinkId link;
  };
  struct OpenHandoff {
    HandoffId handoff;
  };
  struct Withdraw {
    HandoffId handoff;
  };
  struct OpenStep {
    uint64_t step;
    std::vector<Push> pushes;
  };
  struct EndStep {
    uint64_t step;
    uint32_t layers_done;
    bool commit;
  };
  using Command =
      std::variant<Expect, Connect, CloseLink, OpenHandoff, Withdraw, OpenStep, EndStep>;

  struct Link {
    std::vector<LayerMap> layers;
    std::deque<Write> queue;
    uint32_t in_flight = 0;
    uint64_t stalled_since_ns = 0;  // first refusal (kAgain) since the last write taken
    bool usable = false;
  };
  struct Handoff {
    uint64_t outstanding = 0;  // queued or in flight
    bool withdrawn = false;
    bool failed = false;
    Status status;
  };
  struct ActivePush {
    uint64_t step;
    Push push;
    bool committed = false;
    bool ready_posted = false;
    uint32_t layers_posted = 0;
    uint64_t outstanding = 0;
    TransferEvent report;
  };
  struct Pending {  // a write, from the moment it is queued until it is over
    HandoffId handoff;
    uint64_t push_key;
    LinkId link;
    bool posted;
  };

  void run();
  bool drain_commands();
  void apply(Expect& command);
  void apply(Connect& command);
  void apply(CloseLink& command);
  void apply(OpenHandoff& command);
  void apply(Withdraw& command);
  void apply(OpenStep& command);
  void apply(EndStep& command);

  std::atomic<uint64_t>& computed_ns(uint64_t step, uint64_t layer);
  uint32_t layers_ready(const ActivePush& active) const;
  bool push_can_advance() const;
  bool advance_pushes();
  bool advance(uint64_t key, ActivePush& active);
  void enqueue(uint64_t key, ActivePush& active, const std::vector<PagePair>& pairs,
               const LayerMap& layer);
  bool pump();
  bool pump(LinkId id, Link& link);
  bool reap();
  void handle(const DriverEvent& event);
  // A write is over, one way or the other: nothing of it is in flight any more.
  void retire(uint64_t token);
  void drop_queued(HandoffId id);
  void fail_handoff(HandoffId id, const Status& status);
  void fail_link(LinkId id, const Status& status);
  void settle(HandoffId id);
  void report(TransferEvent event);
  void sleep();
  void send(Command command);

  std::unique_ptr<Driver> driver_;
  std::vector<std::byte> address_;
  Descriptor event_fd_;
  Descriptor counter_fd_;
  Descriptor wake_fd_;
  CounterTable counters_;
  Statistics statistics_;

  std::mutex command_mutex_;
  std::vector<Command> commands_;
  std::mutex event_mutex_;
  std::vector<TransferEvent> events_;

  std::atomic<uint64_t> layer_counter_{0};  // step << 16 | layers done
  // Written by the engine loop before it bumps, read by the native thread after it has seen that;
  // of two steps, since a step's last layers may be posted while the next one computes.
  std::array<std::atomic<uint64_t>, 2 * kMaxLayers> computed_ns_{};
  uint64_t step_ = 0;  // engine loop's thread only
  std::atomic<bool> asleep_{false};
  std::atomic<bool> watching_{false};  // a push waits for the layer counter
  std::atomic<bool> stopping_{false};

  // Owned by the native thread.
  std::map<LinkId, Link> links_;
  std::map<HandoffId, Handoff> handoffs_;
  std::map<uint64_t, ActivePush> pushes_;  // by key, in order of steps
  std::map<uint64_t, Pending> pending_;    // by token
  uint64_t next_key_ = 1;
  uint64_t next_token_ = 1;
  std::thread thread_;
};

}  // namespace relevo
