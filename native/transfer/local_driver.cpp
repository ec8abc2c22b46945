// The same-host driver: the peer's memory files are mapped, a write is a memcpy and one bump of
// the peer's counter. No thread of the target takes part.
//
// Fencing: each inbound link has a Gate in the target's control file. The writer holds its robust
// lock per piece and checks under it that its link is admitted; the target shuts the gate and then
// only tries the lock. Once it has had the lock (or finds its owner dead), no byte of that peer can
// land any more.

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "clock.h"
#include "driver.h"
#include "eventfd.h"
#include "handshake.h"
#include "memory_file.h"

namespace relevo {
namespace {

constexpr uint32_t kMagic = 0x524c5631;  // "RLV1"; the last digit is the handshake's version
constexpr size_t kPiece = 256 << 10;     // longest copy under one hold of the gate
constexpr uint64_t kHelloDeadlineNs = 5'000'000'000;

struct Hello {
  uint32_t magic;
  uint32_t reserved;
  LinkId link;
};

// Followed by `regions` times RegionEntry; descriptors: control file, counter_fd, one per region.
struct Welcome {
  uint32_t magic;
  uint32_t gate;
  uint32_t regions;
  uint32_t reserved;
};

struct RegionEntry {
  uint64_t id;
  uint64_t size;
};

struct Outbound {  // we write
  Descriptor socket;
  uint64_t deadline_ns = 0;
  bool up = false;
  uint32_t gate = 0;
  std::unique_ptr<MemoryFile> control;
  Descriptor counter_fd;
  std::map<RegionId, std::unique_ptr<MemoryFile>> regions;

  CounterMemory& memory() const { return *reinterpret_cast<CounterMemory*>(control->data()); }
};

struct Inbound {  // the peer writes
  Descriptor socket;
  uint32_t gate = 0;
};

struct Stranger {  // connected, has not said which link it is
  Descriptor socket;
  uint64_t deadline_ns;
};

Status refused(const char* operation, int code, const std::string& detail) {
  return Status::failure("local", operation, code, detail);
}

class LocalDriver : public Driver {
 public:
  std::string_view name() const override { return "local"; }

  Status open(CounterTable& counters, int counter_fd) override {
    counters_ = &counters;
    counter_fd_ = counter_fd;
    for (uint32_t gate = 0; gate < kGates; ++gate) free_gates_.insert(gate);
    listen_name_ = "relevo-" + std::to_string(getpid()) + "-" + std::to_string(monotonic_ns());
    Status status;
    listener_ = listen_abstract(listen_name_, &status);
    return status;
  }

  Status register_region(const Region& region) override {
    regions_.push_back(region);
    return {};
  }

  std::vector<std::byte> address() const override {
    auto bytes = std::as_bytes(std::span(listen_name_));
    return {bytes.begin(), bytes.end()};
  }

  void expect(LinkId link) override { expected_.insert(link); }

  Status connect(LinkId link, std::span<const std::byte> address, uint64_t deadline_ns) override {
    std::string name(reinterpret_cast<const char*>(address.data()), address.size());
    Status status;
    Outbound out;
    out.socket = connect_abstract(name, &status);
    out.deadline_ns = deadline_ns;
    Hello hello{kMagic, 0, link};
    if (status.ok())
      status = send_packet(out.socket.get(), std::as_bytes(std::span(&hello, 1)), {});
    if (status.ok()) outbound_.emplace(link, std::move(out));
    return status;
  }

  Post post(const Write& write, Status* status) override {
    auto found = outbound_.find(write.link);
    if (found == outbound_.end() || !found->second.up) {
      *status = refused("write", ENOTCONN, "the link is not up");
      return Post::kFailed;
    }
    *status = copy(found->second, write);
    if (!status->ok()) return Post::kFailed;
    done_.push_back({DriverEvent::Kind::kWriteDone, write.link, write.token});
    return Post::kTaken;
  }

  void reap(std::vector<DriverEvent>* events) override {
    accept_strangers();
    greet_strangers();
    for (auto& [link, out] : outbound_) advance_outbound(link, out);
    for (auto& [link, in] : inbound_) watch_inbound(link, in);
    std::erase_if(closing_, [&](const auto& entry) { return try_shut(entry.first, entry.second); });
    events->insert(events->end(), done_.begin(), done_.end());
    done_.clear();
  }

  void close_link(LinkId link) override {
    expected_.erase(link);
    if (closing_.contains(link)) return;  // its peer may still be inside a write
    if (auto in = inbound_.find(link); in != inbound_.end()) {
      Gate& gate = counters_->memory().gates[in->second.gate];
      gate.admitted.store(0, std::memory_order_seq_cst);
      uint32_t index = in->second.gate;
      inbound_.erase(in);
      if (!try_shut(link, index)) closing_.emplace(link, index);
      return;
    }
    outbound_.erase(link);  // writes are synchronous: nothing of ours is in flight
    done_.push_back({DriverEvent::Kind::kLinkClosed, link});
  }

  void wait_fds(std::vector<int>* fds) override {
    if (!starved_) fds->push_back(listener_.get());
    for (auto& [_, out] : outbound_) append(fds, out.socket);
    for (auto& [_, in] : inbound_) append(fds, in.socket);
    for (auto& stranger : strangers_) append(fds, stranger.socket);
  }

  bool may_sleep() override { return done_.empty(); }

  int poll_interval_ms() const override {
    if (!closing_.empty()) return 1;
    bool connecting = std::any_of(outbound_.begin(), outbound_.end(),
                                  [](const auto& entry) { return !entry.second.up; });
    return connecting || starved_ || !strangers_.empty() ? 100 : -1;
  }

 private:
  static void append(std::vector<int>* fds, const Descriptor& socket) {
    if (socket.valid()) fds->push_back(socket.get());
  }

  Status copy(Outbound& out, const Write& write) {
    const Region* source = local_region(write.local_region);
    auto target = out.regions.find(write.remote_region);
    if (source == nullptr || !within(write.local_offset, write.length, source->size)) {
      return refused("write", EINVAL, "source range outside its region");
    }
    if (target == out.regions.end() ||
        !within(write.remote_offset, write.length, target->second->size())) {
      return refused("write", EINVAL, "destination range outside the peer's region");
    }
    std::byte* to = target->second->data() + write.remote_offset;
    const std::byte* from = source->base + write.local_offset;
    Gate& gate = out.memory().gates[out.gate];
    for (uint64_t done = 0; done < write.length;) {
      uint64_t length = std::min<uint64_t>(kPiece, write.length - done);
      bool last = done + length == write.length;
      if (pthread_mutex_lock(&gate.lock) != 0) return refused("write", EPERM, "gate unusable");
      bool admitted = gate.admitted.load(std::memory_order_seq_cst) == write.link;
      if (admitted) {
        std::memcpy(to + done, from + done, length);
        if (last) bump(out, write.immediate);
      }
      pthread_mutex_unlock(&gate.lock);
      if (!admitted) return refused("write", EPERM, "the peer has fenced this link");
      done += length;
    }
    return {};
  }

  static void bump(Outbound& out, uint32_t immediate) {
    Count result = count_parts(out.memory(), Immediate::unpack(immediate));
    if (result == Count::kReached || result == Count::kOvershot)
      signal_eventfd(out.counter_fd.get());
  }

  const Region* local_region(RegionId id) const {
    for (const Region& region : regions_) {
      if (region.id == id) return &region;
    }
    return nullptr;
  }

  void accept_strangers() {
    for (;;) {
      errno = 0;
      Descriptor socket = accept_same_user(listener_.get());
      // Without descriptors the listener stays readable: look again later instead of spinning.
      starved_ = !socket.valid() && (errno == EMFILE || errno == ENFILE);
      if (!socket.valid()) return;
      strangers_.push_back({std::move(socket), monotonic_ns() + kHelloDeadlineNs});
    }
  }

  void greet_strangers() {
    std::erase_if(strangers_, [&](Stranger& stranger) {
      std::vector<std::byte> packet;
      std::vector<Descriptor> fds;
      switch (receive_packet(stranger.socket.get(), &packet, &fds)) {
        case Receive::kNothingYet:
          return monotonic_ns() > stranger.deadline_ns;
        case Receive::kClosed:
          return true;
        case Receive::kPacket:
          welcome(std::move(stranger.socket), packet);
          return true;
      }
      return true;
    });
  }

  // Drops the socket, which the initiator sees as a refusal, unless all is as it should be.
  void welcome(Descriptor socket, const std::vector<std::byte>& packet) {
    Hello hello;
    if (packet.size() != sizeof(hello)) return;
    std::memcpy(&hello, packet.data(), sizeof(hello));
    if (hello.magic != kMagic || free_gates_.empty() || expected_.erase(hello.link) == 0) return;
    uint32_t gate = *free_gates_.begin();
    Welcome head{kMagic, gate, 0, 0};
    std::vector<RegionEntry> entries;
    std::vector<int> fds{counters_->file().fd(), counter_fd_};
    for (const Region& region : regions_) {
      if (region.fd < 0) continue;
      entries.push_back({region.id, region.size});
      fds.push_back(region.fd);
    }
    head.regions = static_cast<uint32_t>(entries.size());
    std::vector<std::byte> reply(sizeof(head) + entries.size() * sizeof(RegionEntry));
    std::memcpy(reply.data(), &head, sizeof(head));
    std::memcpy(reply.data() + sizeof(head), entries.data(), entries.size() * sizeof(RegionEntry));
    std::atomic<uint64_t>& admitted = counters_->memory().gates[gate].admitted;
    admitted.store(hello.link, std::memory_order_seq_cst);  // before the peer may begin
    if (!send_packet(socket.get(), reply, fds).ok()) {
      admitted.store(0, std::memory_order_seq_cst);
      return;
    }
    free_gates_.erase(gate);
    inbound_.emplace(hello.link, Inbound{std::move(socket), gate});
    done_.push_back({DriverEvent::Kind::kLinkUp, hello.link});
  }

  void advance_outbound(LinkId link, Outbound& out) {
    if (!out.socket.valid()) return;
    std::vector<std::byte> packet;
    std::vector<Descriptor> fds;
    Status status;
    switch (receive_packet(out.socket.get(), &packet, &fds)) {
      case Receive::kNothingYet:
        if (out.up || monotonic_ns() < out.deadline_ns) return;
        status = refused("connect", ETIMEDOUT, "no answer from the peer");
        break;
      case Receive::kClosed:
        status = out.up ? refused("link", ECONNRESET, "the peer has gone")
                        : refused("connect", ECONNREFUSED, "the peer did not let this link in");
        break;
      case Receive::kPacket:
        status = adopt(out, packet, &fds);
        if (status.ok()) {
          out.up = true;
          done_.push_back({DriverEvent::Kind::kLinkUp, link});
          return;
        }
    }
    out.up = false;
    out.socket = Descriptor();
    done_.push_back({DriverEvent::Kind::kLinkDown, link, 0, 0, status});
  }

  static Status adopt(Outbound& out, const std::vector<std::byte>& packet,
                      std::vector<Descriptor>* fds) {
    Welcome head{};
    if (packet.size() >= sizeof(head)) std::memcpy(&head, packet.data(), sizeof(head));
    if (out.up || head.magic != kMagic || head.gate >= kGates || fds->size() != head.regions + 2 ||
        packet.size() != sizeof(head) + head.regions * sizeof(RegionEntry)) {
      return refused("connect", EPROTO, "the peer speaks another version of the handshake");
    }
    Status status;
    out.gate = head.gate;
    out.control = MemoryFile::adopt((*fds)[0].release(), sizeof(CounterMemory), &status);
    out.counter_fd = std::move((*fds)[1]);
    for (uint32_t i = 0; i < head.regions && status.ok(); ++i) {
      RegionEntry entry;
      std::memcpy(&entry, packet.data() + sizeof(head) + i * sizeof(entry), sizeof(entry));
      auto file = MemoryFile::adopt((*fds)[i + 2].release(), entry.size, &status);
      if (file) out.regions.emplace(static_cast<RegionId>(entry.id), std::move(file));
    }
    return status;
  }

  void watch_inbound(LinkId link, Inbound& in) {
    if (!in.socket.valid()) return;
    std::vector<std::byte> packet;
    std::vector<Descriptor> fds;
    if (receive_packet(in.socket.get(), &packet, &fds) == Receive::kNothingYet) return;
    in.socket = Descriptor();
    done_.push_back({DriverEvent::Kind::kLinkDown, link, 0, 0,
                     refused("link", ECONNRESET, "the peer has gone")});
  }

  bool try_shut(LinkId link, uint32_t index) {
    Gate& gate = counters_->memory().gates[index];
    int result = pthread_mutex_trylock(&gate.lock);
    if (result == EBUSY) return false;  // stopped inside a write: it may still land
    if (result == EOWNERDEAD) pthread_mutex_consistent(&gate.lock);
    if (result == 0 || result == EOWNERDEAD) pthread_mutex_unlock(&gate.lock);
    done_.push_back({DriverEvent::Kind::kLinkClosed, link});
    free_gates_.insert(index);
    return true;
  }

  CounterTable* counters_ = nullptr;
  int counter_fd_ = -1;
  std::string listen_name_;
  Descriptor listener_;
  bool starved_ = false;
  std::vector<Region> regions_;
  std::set<LinkId> expected_;
  std::set<uint32_t> free_gates_;
  std::vector<Stranger> strangers_;
  std::map<LinkId, Outbound> outbound_;
  std::map<LinkId, Inbound> inbound_;
  std::map<LinkId, uint32_t> closing_;  // gate of each
  std::vector<DriverEvent> done_;
};

}  // namespace

std::unique_ptr<Driver> make_local_driver() { return std::make_unique<LocalDriver>(); }

}  // namespace relevo
