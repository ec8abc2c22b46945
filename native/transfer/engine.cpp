#include "engine.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "clock.h"
#include "eventfd.h"

namespace relevo {
namespace {

Descriptor make_eventfd() { return Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

void Statistics::count_error(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++errors_[{status.operation, status.code}];
}

std::vector<ErrorCount> Statistics::errors() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ErrorCount> counts;
  for (auto& [kind, count] : errors_) counts.push_back({kind.first, kind.second, count});
  return counts;
}

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
  signal_eventfd(wake_fd_.get());
  thread_.join();
  driver_.reset();
}

void TransferEngine::send(Command command) {
  {
    std::lock_guard<std::mutex> lock(command_mutex_);
    commands_.push_back(std::move(command));
  }
  if (asleep_.load()) signal_eventfd(wake_fd_.get());
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

void TransferEngine::add_pushes(std::vector<Push> pushes) {
  send(OpenStep{layer_counter_.load() >> 16, std::move(pushes)});
}

void TransferEngine::bump() {
  uint64_t layer = layer_counter_.load() & 0xffff;
  if (layer < kMaxLayers) computed_ns(step_, layer).store(monotonic_ns());
  layer_counter_.fetch_add(1);
  if (watching_.load() && asleep_.load()) signal_eventfd(wake_fd_.get());
}

void TransferEngine::end_step(bool commit) {
  uint32_t layers_done = static_cast<uint32_t>(layer_counter_.load() & 0xffff);
  send(EndStep{step_, layers_done, commit});
}

std::vector<TransferEvent> TransferEngine::poll_events() {
  clear_eventfd(event_fd_.get());
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
  clear_eventfd(wake_fd_.get());
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

void TransferEngine::report(TransferEvent event) {
  event.at_ns = monotonic_ns();
  {
    std::lock_guard<std::mutex> lock(event_mutex_);
    events_.push_back(std::move(event));
  }
  signal_eventfd(event_fd_.get());
}

}  // namespace relevo
