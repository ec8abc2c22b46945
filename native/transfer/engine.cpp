#include "engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "clock.h"

namespace relevo {
namespace {

constexpr uint32_t kMaxInFlight = 64;  // writes per link: every one costs the target a completion
constexpr uint64_t kStallDeadlineNs = 5'000'000'000;  // a provider that takes nothing for so long
constexpr uint32_t kAllLayers = UINT32_MAX;

Descriptor make_eventfd() { return Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void signal(const Descriptor& fd) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(fd.get(), &one, sizeof(one));
}

void clear(const Descriptor& fd) {
  uint64_t value;
  [[maybe_unused]] ssize_t count = ::read(fd.get(), &value, sizeof(value));
}

Status engine_failure(const char* operation, int code, const char* detail) {
  return Status::failure("engine", operation, code, detail);
}

}  // namespace

TransferEngine::TransferEngine(std::unique_ptr<Driver> driver, std::unique_ptr<MemoryFile> control)
    : driver_(std::move(driver)),
      event_fd_(make_eventfd()),
      counter_fd_(make_eventfd()),
      wake_fd_(make_eventfd()),
      counters_(std::move(control)) {}

TransferEngine::~TransferEngine() { stop(); }

Status TransferEngine::open() {
  if (!event_fd_.valid() || !counter_fd_.valid() || !wake_fd_.valid()) {
    return engine_failure("eventfd", EMFILE, "out of descriptors");
  }
  return driver_->open(counters_, counter_fd_.get());
}

Status TransferEngine::register_region(const Region& region) {
  return driver_->register_region(region);
}

void TransferEngine::start() {
  address_ = driver_->address();
  thread_ = std::thread([this] { run(); });
}

void TransferEngine::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  signal(wake_fd_);
  thread_.join();
  driver_.reset();
}

void TransferEngine::send(Command command) {
  {
    std::lock_guard<std::mutex> lock(command_mutex_);
    commands_.push_back(std::move(command));
  }
  if (asleep_.load()) signal(wake_fd_);
}

void TransferEngine::expect(LinkId link) { send(Expect{link}); }

void TransferEngine::connect(LinkId link, std::vector<std::byte> address,
                             std::vector<LayerMap> layers, uint64_t deadline_ns) {
  send(Connect{link, std::move(address), std::move(layers), deadline_ns});
}

void TransferEngine::close_link(LinkId link) { send(CloseLink{link}); }

void TransferEngine::open_handoff(HandoffId handoff) { send(OpenHandoff{handoff}); }

void TransferEngine::withdraw(HandoffId handoff) { send(Withdraw{handoff}); }

uint64_t TransferEngine::open_step(std::vector<Push> pushes) {
  ++step_;
  layer_counter_.store(step_ << 16);
  send(OpenStep{step_, std::move(pushes)});
  return step_;
}

void TransferEngine::bump() {
  uint64_t layer = layer_counter_.load() & 0xffff;
  if (layer < kMaxLayers) computed_ns(step_, layer).store(monotonic_ns());
  layer_counter_.fetch_add(1);
  if (watching_.load() && asleep_.load()) signal(wake_fd_);
}

void TransferEngine::end_step(bool commit) {
  uint32_t layers_done = static_cast<uint32_t>(layer_counter_.load() & 0xffff);
  send(EndStep{step_, layers_done, commit});
}

std::vector<TransferEvent> TransferEngine::poll_events() {
  clear(event_fd_);
  std::lock_guard<std::mutex> lock(event_mutex_);
  return std::exchange(events_, {});
}

// ---- everything below runs on the native thread ----

void TransferEngine::run() {
  while (!stopping_.load()) {
    bool worked = drain_commands();
    worked |= advance_pushes();
    worked |= pump();
    worked |= reap();
    if (!worked) sleep();
  }
}

void TransferEngine::sleep() {
  bool waiting = false;
  bool stalled = false;
  for (auto& [_, active] : pushes_) waiting |= !active.committed;
  for (auto& [_, link] : links_) stalled |= link.stalled_since_ns != 0;
  watching_.store(waiting);
  asleep_.store(true);
  // Looked at again after `asleep_` is set: whoever came before did not signal, whoever comes
  // after does.
  bool pending;
  {
    std::lock_guard<std::mutex> lock(command_mutex_);
    pending = !commands_.empty();
  }
  if (!pending && !stopping_.load() && !push_can_advance() && driver_->may_sleep()) {
    std::vector<int> fds{wake_fd_.get()};
    driver_->wait_fds(&fds);
    std::vector<pollfd> polled;
    for (int fd : fds) polled.push_back({fd, POLLIN, 0});
    poll(polled.data(), polled.size(), stalled ? 1 : driver_->poll_interval_ms());
  }
  asleep_.store(false);
  clear(wake_fd_);
}

bool TransferEngine::drain_commands() {
  std::vector<Command> commands;
  {
    std::lock_guard<std::mutex> lock(command_mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    std::visit([this](auto& one) { apply(one); }, command);
  }
  return !commands.empty();
}

void TransferEngine::apply(Expect& command) { driver_->expect(command.link); }

void TransferEngine::apply(Connect& command) {
  Link& link = links_[command.link];
  link.layers = std::move(command.layers);
  Status status = driver_->connect(command.link, command.address, command.deadline_ns);
  if (status.ok()) return;
  links_.erase(command.link);
  report({.kind = TransferEvent::Kind::kLinkDown, .link = command.link, .status = status});
}

void TransferEngine::apply(CloseLink& command) {
  fail_link(command.link, engine_failure("write", ECANCELED, "the link was closed"));
  driver_->close_link(command.link);
}

void TransferEngine::apply(OpenHandoff& command) { handoffs_.try_emplace(command.handoff); }

void TransferEngine::apply(Withdraw& command) {
  auto found = handoffs_.find(command.handoff);
  if (found == handoffs_.end()) {
    report({.kind = TransferEvent::Kind::kDrained, .handoff = command.handoff});
    return;
  }
  found->second.withdrawn = true;
  drop_queued(command.handoff);
  settle(command.handoff);
}

void TransferEngine::apply(OpenStep& command) {
  for (Push& push : command.pushes) {
    auto handoff = handoffs_.find(push.handoff);
    if (handoff == handoffs_.end() || handoff->second.withdrawn || handoff->second.failed) {
      ++statistics_.refused_pushes;
      continue;
    }
    auto link = links_.find(push.link);
    if (link == links_.end() || !link->second.usable) {
      fail_handoff(push.handoff, engine_failure("write", ENOTCONN, "the link is not up"));
      continue;
    }
    ActivePush active{.step = command.step, .push = std::move(push), .report = {}};
    pushes_.emplace(next_key_++, std::move(active));
  }
}

void TransferEngine::apply(EndStep& command) {
  std::vector<HandoffId> incomplete;
  for (auto& [_, active] : pushes_) {
    if (active.step != command.step) continue;
    active.committed = true;
    size_t layers = links_[active.push.link].layers.size();
    bool whole = active.push.layered.empty() || command.layers_done >= layers;
    if (!command.commit || !whole) incomplete.push_back(active.push.handoff);
  }
  for (HandoffId id : incomplete) {
    fail_handoff(id, engine_failure("step", ECANCELED,
                                    command.commit ? "committed before its last layer"
                                                   : "the forward pass was aborted"));
  }
}

std::atomic<uint64_t>& TransferEngine::computed_ns(uint64_t step, uint64_t layer) {
  return computed_ns_[(step & 1) * kMaxLayers + layer % kMaxLayers];
}

uint32_t TransferEngine::layers_ready(const ActivePush& active) const {
  if (active.committed || active.push.layered.empty()) return kAllLayers;
  uint64_t value = layer_counter_.load();
  // A later step has opened: this one's end is in the command queue, in front of that.
  return value >> 16 == active.step ? static_cast<uint32_t>(value & 0xffff) : 0;
}

bool TransferEngine::push_can_advance() const {
  return std::any_of(pushes_.begin(), pushes_.end(), [&](const auto& entry) {
    const ActivePush& active = entry.second;
    auto link = links_.find(active.push.link);
    size_t layers = link == links_.end() ? 0 : link->second.layers.size();
    return !active.ready_posted ||
           std::min<size_t>(layers_ready(active), layers) > active.layers_posted;
  });
}

bool TransferEngine::advance_pushes() {
  bool worked = false;
  for (auto entry = pushes_.begin(); entry != pushes_.end();) {
    auto current = entry++;  // a push that is complete erases itself
    worked |= advance(current->first, current->second);
  }
  return worked;
}

bool TransferEngine::advance(uint64_t key, ActivePush& active) {
  const std::vector<LayerMap>& layers = links_[active.push.link].layers;
  bool worked = false;
  if (!active.ready_posted) {
    for (const LayerMap& layer : layers) enqueue(key, active, active.push.ready, layer);
    active.ready_posted = true;
    worked = true;
  }
  size_t ready = std::min<size_t>(layers_ready(active), layers.size());
  while (active.layers_posted < ready) {
    enqueue(key, active, active.push.layered, layers[active.layers_posted]);
    active.report.layers.push_back(
        {computed_ns(active.step, active.layers_posted).load(), monotonic_ns()});
    ++active.layers_posted;
    worked = true;
  }
  // The last push waits for the earlier ones too: nothing promises that they complete in order.
  bool complete = active.outstanding == 0;
  if (complete && active.push.last) complete = handoffs_[active.push.handoff].outstanding == 0;
  if (active.layers_posted == layers.size() && complete) {
    active.report.kind = TransferEvent::Kind::kPushed;
    active.report.link = active.push.link;
    active.report.handoff = active.push.handoff;
    active.report.step = active.step;
    active.report.last = active.push.last;
    report(std::move(active.report));
    if (active.push.last) handoffs_.erase(active.push.handoff);
    pushes_.erase(key);
    worked = true;
  }
  return worked;
}

void TransferEngine::enqueue(uint64_t key, ActivePush& active, const std::vector<PagePair>& pairs,
                             const LayerMap& layer) {
  for (Write& write : writes_of(active.push, pairs, layer)) {
    write.token = next_token_++;
    uint64_t parts = Immediate::unpack(write.immediate).parts;
    active.report.writes += 1;
    active.report.parts += parts;
    active.report.bytes += write.length;
    active.outstanding += 1;
    handoffs_[active.push.handoff].outstanding += 1;
    pending_.emplace(write.token, Pending{active.push.handoff, key, write.link, false});
    links_[write.link].queue.push_back(write);
  }
}

bool TransferEngine::pump() {
  bool worked = false;
  for (auto& [id, link] : links_) worked |= pump(id, link);
  return worked;
}

bool TransferEngine::pump(LinkId id, Link& link) {
  bool worked = false;
  while (!link.queue.empty() && link.in_flight < kMaxInFlight && link.usable) {
    Write write = link.queue.front();
    Status status;
    Post result = driver_->post(write, &status);
    if (result == Post::kAgain) {
      ++statistics_.retries;
      if (link.stalled_since_ns == 0) link.stalled_since_ns = monotonic_ns();
      if (monotonic_ns() - link.stalled_since_ns > kStallDeadlineNs) {
        Status stalled = engine_failure("write", ETIMEDOUT, "the provider takes no writes");
        fail_link(id, stalled);
        report({.kind = TransferEvent::Kind::kLinkDown, .link = id, .status = stalled});
      }
      return worked;
    }
    link.queue.pop_front();
    link.stalled_since_ns = 0;
    worked = true;
    if (result == Post::kFailed) {
      ++statistics_.errors;
      HandoffId handoff = pending_[write.token].handoff;
      retire(write.token);
      fail_handoff(handoff, status);
      continue;
    }
    ++statistics_.writes;
    statistics_.parts += Immediate::unpack(write.immediate).parts;
    statistics_.bytes += write.length;
    pending_[write.token].posted = true;
    ++link.in_flight;
  }
  return worked;
}

bool TransferEngine::reap() {
  std::vector<DriverEvent> events;
  driver_->reap(&events);
  for (const DriverEvent& event : events) handle(event);
  return !events.empty();
}

void TransferEngine::handle(const DriverEvent& event) {
  using Kind = DriverEvent::Kind;
  switch (event.kind) {
    case Kind::kLinkUp:
      if (auto link = links_.find(event.link); link != links_.end()) link->second.usable = true;
      report({.kind = TransferEvent::Kind::kLinkUp, .link = event.link});
      return;
    case Kind::kLinkDown:
      fail_link(event.link, event.status);
      report({.kind = TransferEvent::Kind::kLinkDown, .link = event.link, .status = event.status});
      return;
    case Kind::kLinkClosed: {
      std::vector<uint64_t> orphans;
      for (auto& [token, pending] : pending_) {
        if (pending.link == event.link) orphans.push_back(token);
      }
      for (uint64_t token : orphans) {
        HandoffId handoff = pending_[token].handoff;
        retire(token);
        settle(handoff);
      }
      links_.erase(event.link);
      report({.kind = TransferEvent::Kind::kLinkClosed, .link = event.link});
      return;
    }
    case Kind::kWriteDone:
    case Kind::kWriteFailed: {
      auto found = pending_.find(event.token);
      if (found == pending_.end()) return;  // completed after its link was closed
      HandoffId handoff = found->second.handoff;
      retire(event.token);
      if (event.kind == Kind::kWriteFailed) {
        ++statistics_.errors;
        fail_handoff(handoff, event.status);
      }
      settle(handoff);
      return;
    }
    case Kind::kImmediate: {
      Count result = count_parts(counters_.memory(), Immediate::unpack(event.immediate));
      if (result == Count::kReached || result == Count::kOvershot) signal(counter_fd_);
      return;
    }
  }
}

void TransferEngine::retire(uint64_t token) {
  Pending pending = pending_[token];
  pending_.erase(token);
  if (auto link = links_.find(pending.link); link != links_.end() && pending.posted) {
    --link->second.in_flight;
  }
  if (auto push = pushes_.find(pending.push_key); push != pushes_.end()) {
    --push->second.outstanding;
  }
  if (auto handoff = handoffs_.find(pending.handoff); handoff != handoffs_.end()) {
    --handoff->second.outstanding;
  }
}

void TransferEngine::drop_queued(HandoffId id) {
  std::erase_if(pushes_, [&](const auto& entry) { return entry.second.push.handoff == id; });
  for (auto& [_, link] : links_) {
    std::erase_if(link.queue, [&](const Write& write) {
      if (pending_[write.token].handoff != id) return false;
      retire(write.token);
      return true;
    });
  }
}

void TransferEngine::fail_handoff(HandoffId id, const Status& status) {
  auto found = handoffs_.find(id);
  if (found == handoffs_.end()) return;
  if (!found->second.failed) found->second.status = status;
  found->second.failed = true;
  drop_queued(id);
  settle(id);
}

void TransferEngine::fail_link(LinkId id, const Status& status) {
  auto link = links_.find(id);
  if (link == links_.end()) return;
  link->second.usable = false;
  link->second.stalled_since_ns = 0;
  std::vector<HandoffId> touched;
  for (auto& [_, active] : pushes_) {
    if (active.push.link == id) touched.push_back(active.push.handoff);
  }
  for (HandoffId handoff : touched) fail_handoff(handoff, status);
}

void TransferEngine::settle(HandoffId id) {
  auto found = handoffs_.find(id);
  if (found == handoffs_.end() || found->second.outstanding > 0) return;
  Handoff handoff = found->second;
  if (!handoff.withdrawn && !handoff.failed) return;
  handoffs_.erase(found);
  auto kind = handoff.withdrawn ? TransferEvent::Kind::kDrained : TransferEvent::Kind::kFailed;
  report({.kind = kind, .handoff = id, .status = handoff.status});
}

void TransferEngine::report(TransferEvent event) {
  event.at_ns = monotonic_ns();
  {
    std::lock_guard<std::mutex> lock(event_mutex_);
    events_.push_back(std::move(event));
  }
  signal(event_fd_);
}

}  // namespace relevo
