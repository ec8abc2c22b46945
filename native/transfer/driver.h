// The driver seam: all that a new transport has to implement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "counters.h"
#include "status.h"

namespace relevo {

// A link is one directed pair of processes: the initiator writes, the target lets it. Its id is
// drawn by the target, is never used twice, and is what lets the initiator in.
using LinkId = uint64_t;

using RegionId = uint32_t;

// Memory that may be read from (source) or written to (target). The caller owns it; it must
// outlive the driver. `fd` is the memory file behind it, or -1 for private memory.
struct Region {
  RegionId id;
  std::byte* base;
  size_t size;
  int fd;
};

// One one-sided write. Offsets are bytes within regions. `token` comes back with its completion.
struct Write {
  LinkId link;
  RegionId local_region;
  uint64_t local_offset;
  RegionId remote_region;
  uint64_t remote_offset;
  uint64_t length;
  uint32_t immediate;
  uint64_t token;
};

// Whether `length` bytes at `offset` lie within `size`; wraps nowhere.
inline bool within(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

enum class Post {
  kTaken,   // exactly one kWriteDone or kWriteFailed follows, unless the link is closed first
  kAgain,   // not taken, nothing was sent: offer it again later
  kFailed,  // not taken and never will be; `status` says why
};

struct DriverEvent {
  enum class Kind {
    kLinkUp,
    kLinkDown,  // the peer is gone or refused; writes in flight may still land until closed
    kLinkClosed,
    kWriteDone,  // the bytes are in the target's memory
    kWriteFailed,
    kImmediate,  // target side, where the provider does not count by itself
  };
  Kind kind;
  LinkId link = 0;
  uint64_t token = 0;
  uint32_t immediate = 0;
  Status status = {};
};

// Lifetime: open, then register_region for all regions, then the rest. Every call is made by one
// thread at a time: the creating one until the native thread starts, that thread afterwards.
class Driver {
 public:
  virtual ~Driver() = default;

  virtual std::string_view name() const = 0;

  // `counters` and `counter_fd` (an eventfd that is written when a counter has completed) stay
  // valid for the driver's life.
  virtual Status open(CounterTable& counters, int counter_fd) = 0;

  virtual Status register_region(const Region& region) = 0;

  // What an initiator needs in order to connect: place, regions, keys. Opaque bytes.
  virtual std::vector<std::byte> address() const = 0;

  // Target: lets an initiator with this link id in, once.
  virtual void expect(LinkId link) = 0;

  // Initiator: kLinkUp or kLinkDown follows, within `deadline_ns`.
  virtual Status connect(LinkId link, std::span<const std::byte> address, uint64_t deadline_ns) = 0;

  virtual Post post(const Write& write, Status* status) = 0;

  // Appends what has happened since the last call. Never blocks.
  virtual void reap(std::vector<DriverEvent>* events) = 0;

  // Either side. kLinkClosed follows when nothing of that peer can land any more and nothing of
  // ours is in flight; that may take for ever if the peer is stopped inside a write. Writes that
  // were in flight get no completion of their own. Unknown links are closed at once.
  virtual void close_link(LinkId link) = 0;

  // Descriptors to sleep on; the set may change at any call of the others.
  virtual void wait_fds(std::vector<int>* fds) = 0;

  // False when something is pending that no descriptor would announce.
  virtual bool may_sleep() = 0;

  // How long to sleep at most, in ms, while something waits that only a look can find; else -1.
  virtual int poll_interval_ms() const = 0;
};

std::unique_ptr<Driver> make_local_driver();

// What a faulty driver does to writes, by probability per write; `delay_us` is the longest delay,
// drawn evenly from 0; `bytes_per_s` the pace of the link that all writes share, 0 for its own. All
// zero: nothing.
struct Faults {
  uint64_t seed = 0;
  uint64_t delay_us = 0;
  uint64_t bytes_per_s = 0;
  double error = 0;    // the write fails and is not sent
  double stall = 0;    // the provider takes nothing for 20 ms
  double cut = 0;      // the link is lost
  double corrupt = 0;  // the write carries other bytes, and nothing tells
};

std::unique_ptr<Driver> make_faulty_driver(std::unique_ptr<Driver> inner, const Faults& faults);

// "major.minor", and the names of all providers on this machine; empty without libfabric.
std::string libfabric_version();
std::vector<std::string> libfabric_providers();

// Null where the core was built without libfabric. `provider` is "tcp"; `host` the address to
// listen on.
std::unique_ptr<Driver> make_libfabric_driver(const std::string& provider, const std::string& host);

}  // namespace relevo
