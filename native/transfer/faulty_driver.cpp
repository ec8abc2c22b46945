// Wraps another driver and makes it misbehave, by seed: writes that are late (and so overtake each
// other), that fail, that carry other bytes, that are not taken for a while, links that are cut,
// and links that are slow.

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "clock.h"
#include "driver.h"

namespace relevo {
namespace {

constexpr uint64_t kStallNs = 20'000'000;

struct Held {  // taken from the engine, not yet given to the wrapped driver
  Write write;
  uint64_t due_ns;
  bool fails;
};

class FaultyDriver : public Driver {
 public:
  FaultyDriver(std::unique_ptr<Driver> inner, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults), random_(faults.seed) {}

  std::string_view name() const override { return inner_->name(); }
  Status open(CounterTable& counters, int counter_fd) override {
    return inner_->open(counters, counter_fd);
  }
  Status register_region(const Region& region) override {
    sizes_[region.id] = region.size;
    return inner_->register_region(region);
  }
  std::vector<std::byte> address() const override { return inner_->address(); }
  void expect(LinkId link) override { inner_->expect(link); }
  Status connect(LinkId link, std::span<const std::byte> address, uint64_t deadline_ns) override {
    return inner_->connect(link, address, deadline_ns);
  }

  Post post(const Write& write, Status* status) override {
    if (cut_.contains(write.link)) {
      *status = cut_status("write");
      return Post::kFailed;
    }
    if (monotonic_ns() < stalled_until_ns_) return Post::kAgain;
    if (happens(faults_.stall)) {
      stalled_until_ns_ = monotonic_ns() + kStallNs;
      return Post::kAgain;
    }
    if (happens(faults_.cut)) {
      cut(write.link);
      *status = cut_status("write");
      return Post::kFailed;
    }
    uint64_t delay = faults_.delay_us == 0 ? 0 : random_() % (faults_.delay_us * 1000);
    held_.push_back({write, through_link(write) + delay, happens(faults_.error)});
    if (happens(faults_.corrupt)) take_other_bytes(&held_.back().write);
    return Post::kTaken;
  }

  void reap(std::vector<DriverEvent>* events) override {
    uint64_t now = monotonic_ns();
    std::erase_if(held_, [&](const Held& held) { return held.due_ns <= now && release(held); });
    size_t before = events->size();
    inner_->reap(events);
    // A link that was cut is reported as lost already, and closed when the engine asks for it.
    auto own = [&](const DriverEvent& event) {
      return event.kind == DriverEvent::Kind::kLinkClosed && cut_.erase(event.link) == 1;
    };
    events->erase(
        std::remove_if(events->begin() + static_cast<ptrdiff_t>(before), events->end(), own),
        events->end());
    events->insert(events->end(), events_.begin(), events_.end());
    events_.clear();
  }

  void close_link(LinkId link) override {
    std::erase_if(held_, [&](const Held& held) { return held.write.link == link; });
    inner_->close_link(link);
  }

  void wait_fds(std::vector<int>* fds) override { inner_->wait_fds(fds); }
  bool may_sleep() override { return events_.empty() && inner_->may_sleep(); }
  int poll_interval_ms() const override { return held_.empty() ? inner_->poll_interval_ms() : 1; }

 private:
  // When the write has passed a link of the wanted pace, one after another.
  uint64_t through_link(const Write& write) {
    uint64_t now = monotonic_ns();
    if (faults_.bytes_per_s == 0) return now;
    uint64_t takes = static_cast<uint64_t>(1e9 * static_cast<double>(write.length) /
                                           static_cast<double>(faults_.bytes_per_s));
    link_free_ns_ = std::max(now, link_free_ns_) + takes;
    return link_free_ns_;
  }

  bool happens(double probability) {
    return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }

  // Those next to the ones that were asked for: another page's.
  void take_other_bytes(Write* write) const {
    bool room_after = write->local_offset + 2 * write->length <= sizes_.at(write->local_region);
    if (room_after) {
      write->local_offset += write->length;
    } else if (write->local_offset >= write->length) {
      write->local_offset -= write->length;
    }
  }

  // True when the write is out of our hands.
  bool release(const Held& held) {
    Status status = Status::failure("faulty", "write", EIO, "failed on purpose");
    Post result = held.fails ? Post::kFailed : inner_->post(held.write, &status);
    if (result == Post::kAgain) return false;
    if (result == Post::kFailed) {
      events_.push_back(
          {DriverEvent::Kind::kWriteFailed, held.write.link, held.write.token, 0, status});
    }
    return true;
  }

  static Status cut_status(const char* operation) {
    return Status::failure("faulty", operation, ECONNRESET, "the link was cut on purpose");
  }

  void cut(LinkId link) {
    close_link(link);
    cut_.insert(link);
    events_.push_back({DriverEvent::Kind::kLinkDown, link, 0, 0, cut_status("link")});
  }

  std::unique_ptr<Driver> inner_;
  Faults faults_;
  std::mt19937_64 random_;
  std::map<RegionId, uint64_t> sizes_;
  uint64_t stalled_until_ns_ = 0;
  uint64_t link_free_ns_ = 0;
  std::vector<Held> held_;
  std::set<LinkId> cut_;
  std::vector<DriverEvent> events_;
};

}  // namespace

std::unique_ptr<Driver> make_faulty_driver(std::unique_ptr<Driver> inner, const Faults& faults) {
  return std::make_unique<FaultyDriver>(std::move(inner), faults);
}

}  // namespace relevo
