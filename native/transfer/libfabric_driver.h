// The libfabric driver, with one message endpoint per link: closing the endpoint is what fences
// (closing a memory registration does not stop a half-received tcp write). Its parts: setting up
// and writing (libfabric_driver.cpp), connections (libfabric_links.cpp).
//
// Native thread only, but for what driver.h allows before start.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <map>
#include <set>

#include "driver.h"

namespace relevo::libfabric {

constexpr int kApiVersion = FI_VERSION(1, 17);

struct Close {
  template <class T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Close>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// address(): the listening socket's address, then one entry per region.
struct RegionEntry {
  uint64_t id;
  uint64_t size;
  uint64_t key;
  uint64_t base;  // what offset 0 of the region is called on the wire
};

struct LocalRegion {
  Region region;
  Owned<fid_mr> mr;
};

struct Operation {
  fi_context2 context;  // must be first: completions hand its address back
  uint64_t token;
  LinkId link;
};

struct Endpoint {
  Owned<fid_ep> ep;
  bool initiator = false;
  bool up = false;
  uint64_t deadline_ns = 0;
  std::map<RegionId, RegionEntry> remote;
};

class LibfabricDriver : public Driver {
 public:
  LibfabricDriver(std::string provider, std::string host)
      : provider_(std::move(provider)), host_(std::move(host)) {}

  std::string_view name() const override { return provider_; }

  Status open(CounterTable&, int) override;
  Status register_region(const Region& region) override;
  std::vector<std::byte> address() const override;
  void expect(LinkId link) override { expected_.insert(link); }

  Status connect(LinkId link, std::span<const std::byte> address, uint64_t deadline_ns) override;
  Post post(const Write& write, Status* status) override;
  void reap(std::vector<DriverEvent>* events) override;
  void close_link(LinkId link) override;
  void wait_fds(std::vector<int>* fds) override;
  bool may_sleep() override;
  int poll_interval_ms() const override;

 private:
  static bool connecting(const Endpoint& endpoint);
  Status failed(const char* operation, int rc, const char* detail = nullptr) const;
  Info lookup(const char* node, const char* service, uint64_t flags, Status* status);
  void read_completions(std::vector<DriverEvent>* events);
  void read_error(std::vector<DriverEvent>* events);
  void finish(void* context, DriverEvent::Kind kind, const Status& status,
              std::vector<DriverEvent>* events);

  // Connections: libfabric_links.cpp.
  Status open_endpoint(fi_info* info, Endpoint* endpoint);
  bool read_connection_event(std::vector<DriverEvent>* events);
  void let_in(fi_info* info, const std::byte* data, size_t size, std::vector<DriverEvent>* events);
  Endpoint* find(fid* object, LinkId* link);
  void connected(fid* object, std::vector<DriverEvent>* events);
  void end_of(fid* object, const Status& status, std::vector<DriverEvent>* events);
  // Reported once; the endpoint stays until close_link.
  void take_down(LinkId link, Endpoint* endpoint, const Status& status,
                 std::vector<DriverEvent>* events);

  std::string provider_;
  std::string host_;
  // Closed in reverse order: endpoints and regions first, then queues, domain and fabric.
  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_eq> eq_;
  Owned<fid_cq> cq_;
  Owned<fid_pep> pep_;
  std::map<RegionId, LocalRegion> regions_;
  // Outlive their endpoint: a provider may still hand the context of a closed one back.
  std::map<Operation*, std::unique_ptr<Operation>> operations_;
  std::map<LinkId, Endpoint> endpoints_;
  std::set<LinkId> expected_;
  std::vector<DriverEvent> closed_;
};

}  // namespace relevo::libfabric
