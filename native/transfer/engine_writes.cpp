// The transfer engine's second half: from pushes to writes, and what becomes of each write. All of
// it runs on the native thread.

#include <algorithm>
#include <cerrno>

#include "clock.h"
#include "engine.h"
#include "eventfd.h"

namespace relevo {
namespace {

constexpr uint32_t kMaxInFlight = 64;  // writes per link: every one costs the target a completion
constexpr uint64_t kStallDeadlineNs = 5'000'000'000;  // a provider that takes nothing for so long
constexpr uint32_t kAllLayers = UINT32_MAX;

}  // namespace

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
      statistics_.count_error(status);
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
    ++statistics_.in_flight;
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
        statistics_.count_error(event.status);
        fail_handoff(handoff, event.status);
      }
      settle(handoff);
      return;
    }
    case Kind::kImmediate: {
      Count result = count_parts(counters_.memory(), Immediate::unpack(event.immediate));
      if (result == Count::kReached || result == Count::kOvershot)
        signal_eventfd(counter_fd_.get());
      return;
    }
  }
}

void TransferEngine::retire(uint64_t token) {
  Pending pending = pending_[token];
  pending_.erase(token);
  if (pending.posted) {
    --statistics_.in_flight;
    if (auto link = links_.find(pending.link); link != links_.end()) --link->second.in_flight;
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

}  // namespace relevo
