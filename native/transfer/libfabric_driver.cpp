// The libfabric driver, with one message endpoint per link: closing the endpoint is what fences
// (closing a memory registration does not stop a half-received tcp write).

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "clock.h"
#include "driver.h"

namespace relevo {
namespace {

constexpr uint32_t kMagic = 0x524c5631;  // "RLV1"; the last digit is the handshake's version
constexpr size_t kMaxCmData = 256;
constexpr int kAnswer = FI_VERSION(1, 17);

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

// Travels with the connection request.
struct Hello {
  uint32_t magic;
  uint32_t reserved;
  LinkId link;
};

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

  Status open(CounterTable&, int) override {
    Status status;
    info_ = lookup(host_.c_str(), "0", FI_SOURCE, &status);
    if (!info_) return status;
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_eq* eq = nullptr;
    fid_cq* cq = nullptr;
    fid_pep* pep = nullptr;
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_FD;
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_DATA;
    cq_attr.wait_obj = FI_WAIT_FD;
    cq_attr.size = 4096;
    int rc = fi_fabric(info_->fabric_attr, &fabric, nullptr);
    if (rc != 0) return failed("fi_fabric", rc);
    fabric_.reset(fabric);
    if ((rc = fi_domain(fabric, info_.get(), &domain, nullptr)) != 0)
      return failed("fi_domain", rc);
    domain_.reset(domain);
    if ((rc = fi_eq_open(fabric, &eq_attr, &eq, nullptr)) != 0) return failed("fi_eq_open", rc);
    eq_.reset(eq);
    if ((rc = fi_cq_open(domain, &cq_attr, &cq, nullptr)) != 0) return failed("fi_cq_open", rc);
    cq_.reset(cq);
    if ((rc = fi_passive_ep(fabric, info_.get(), &pep, nullptr)) != 0) {
      return failed("fi_passive_ep", rc);
    }
    pep_.reset(pep);
    if ((rc = fi_pep_bind(pep, &eq->fid, 0)) != 0) return failed("fi_pep_bind", rc);
    if ((rc = fi_listen(pep)) != 0) return failed("fi_listen", rc);
    return {};
  }

  Status register_region(const Region& region) override {
    fid_mr* mr = nullptr;
    uint64_t access = FI_REMOTE_WRITE | FI_WRITE;
    int rc = fi_mr_reg(domain_.get(), region.base, region.size, access, 0, region.id + 1, 0, &mr,
                       nullptr);
    if (rc != 0) return failed("fi_mr_reg", rc);
    regions_.emplace(region.id, LocalRegion{region, Owned<fid_mr>(mr)});
    return {};
  }

  std::vector<std::byte> address() const override {
    sockaddr_in where{};
    size_t size = sizeof(where);
    fi_getname(&pep_->fid, &where, &size);
    std::vector<std::byte> bytes(sizeof(where));
    std::memcpy(bytes.data(), &where, sizeof(where));
    bool virtual_addresses = info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    for (auto& [id, local] : regions_) {
      uint64_t base = virtual_addresses ? reinterpret_cast<uint64_t>(local.region.base) : 0;
      RegionEntry entry{id, local.region.size, fi_mr_key(local.mr.get()), base};
      auto* raw = reinterpret_cast<const std::byte*>(&entry);
      bytes.insert(bytes.end(), raw, raw + sizeof(entry));
    }
    return bytes;
  }

  void expect(LinkId link) override { expected_.insert(link); }

  Status connect(LinkId link, std::span<const std::byte> address, uint64_t deadline_ns) override {
    sockaddr_in where{};
    if (address.size() < sizeof(where) ||
        (address.size() - sizeof(where)) % sizeof(RegionEntry) != 0) {
      return failed("connect", -FI_EINVAL, "the peer's address has another format");
    }
    std::memcpy(&where, address.data(), sizeof(where));
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &where.sin_addr, host, sizeof(host));
    Status status;
    Info info = lookup(host, std::to_string(ntohs(where.sin_port)).c_str(), 0, &status);
    if (!info) return status;
    Endpoint endpoint;
    endpoint.initiator = true;
    endpoint.deadline_ns = deadline_ns;
    for (size_t at = sizeof(where); at < address.size(); at += sizeof(RegionEntry)) {
      RegionEntry entry;
      std::memcpy(&entry, address.data() + at, sizeof(entry));
      endpoint.remote.emplace(static_cast<RegionId>(entry.id), entry);
    }
    status = open_endpoint(info.get(), &endpoint);
    if (!status.ok()) return status;
    Hello hello{kMagic, 0, link};
    int rc = fi_connect(endpoint.ep.get(), info->dest_addr, &hello, sizeof(hello));
    if (rc != 0) return failed("fi_connect", rc);
    endpoints_.emplace(link, std::move(endpoint));
    return {};
  }

  Post post(const Write& write, Status* status) override {
    auto found = endpoints_.find(write.link);
    if (found == endpoints_.end() || !found->second.up) {
      *status = failed("fi_writemsg", -FI_ENOTCONN, "the link is not up");
      return Post::kFailed;
    }
    Endpoint& endpoint = found->second;
    auto source = regions_.find(write.local_region);
    auto target = endpoint.remote.find(write.remote_region);
    if (source == regions_.end() ||
        !within(write.local_offset, write.length, source->second.region.size) ||
        target == endpoint.remote.end() ||
        !within(write.remote_offset, write.length, target->second.size)) {
      *status = failed("fi_writemsg", -FI_EINVAL, "a range outside its region");
      return Post::kFailed;
    }
    auto operation = std::make_unique<Operation>();
    operation->token = write.token;
    operation->link = write.link;
    iovec local{source->second.region.base + write.local_offset, write.length};
    void* descriptor = fi_mr_desc(source->second.mr.get());
    fi_rma_iov remote{target->second.base + write.remote_offset, write.length, target->second.key};
    fi_msg_rma message{};
    message.msg_iov = &local;
    message.desc = &descriptor;
    message.iov_count = 1;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = operation.get();
    message.data = write.immediate;
    ssize_t rc = fi_writemsg(endpoint.ep.get(), &message,
                             FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE | FI_COMPLETION);
    if (rc == -FI_EAGAIN) return Post::kAgain;
    if (rc != 0) {
      *status = failed("fi_writemsg", static_cast<int>(rc));
      return Post::kFailed;
    }
    Operation* key = operation.get();
    operations_.emplace(key, std::move(operation));
    return Post::kTaken;
  }

  void reap(std::vector<DriverEvent>* events) override {
    read_completions(events);
    while (read_connection_event(events)) {
    }
    for (auto& [link, endpoint] : endpoints_) {
      if (!connecting(endpoint) || monotonic_ns() < endpoint.deadline_ns) continue;
      take_down(link, &endpoint, failed("connect", -FI_ETIMEDOUT, "no answer from the peer"),
                events);
    }
    events->insert(events->end(), closed_.begin(), closed_.end());
    closed_.clear();
  }

  void close_link(LinkId link) override {
    expected_.erase(link);
    if (auto found = endpoints_.find(link); found != endpoints_.end()) {
      if (found->second.up) fi_shutdown(found->second.ep.get(), 0);
      endpoints_.erase(found);  // closes the endpoint: nothing lands and nothing is sent any more
    }
    closed_.push_back({DriverEvent::Kind::kLinkClosed, link});
  }

  void wait_fds(std::vector<int>* fds) override {
    for (fid* object : {&cq_->fid, &eq_->fid}) {
      int fd = -1;
      if (fi_control(object, FI_GETWAIT, &fd) == 0) fds->push_back(fd);
    }
  }

  bool may_sleep() override {
    fid* objects[] = {&cq_->fid, &eq_->fid};
    return closed_.empty() && fi_trywait(fabric_.get(), objects, 2) == FI_SUCCESS;
  }

  int poll_interval_ms() const override {
    for (auto& [_, endpoint] : endpoints_) {
      if (connecting(endpoint)) return 100;
    }
    return -1;
  }

 private:
  static bool connecting(const Endpoint& endpoint) {
    return endpoint.initiator && !endpoint.up && endpoint.ep && endpoint.deadline_ns != 0;
  }

  Status failed(const char* operation, int rc, const char* detail = nullptr) const {
    return Status::failure(provider_, operation, rc, detail ? detail : fi_strerror(-rc));
  }

  Info lookup(const char* node, const char* service, uint64_t flags, Status* status) {
    Info hints(fi_allocinfo());
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup(provider_.c_str());
    fi_info* found = nullptr;
    int rc = fi_getinfo(kAnswer, node, service, flags, hints.get(), &found);
    if (rc != 0) *status = failed("fi_getinfo", rc);
    return Info(rc == 0 ? found : nullptr);
  }

  Status open_endpoint(fi_info* info, Endpoint* endpoint) {
    fid_ep* ep = nullptr;
    int rc = fi_endpoint(domain_.get(), info, &ep, nullptr);
    if (rc != 0) return failed("fi_endpoint", rc);
    endpoint->ep.reset(ep);
    if ((rc = fi_ep_bind(ep, &eq_->fid, 0)) != 0) return failed("fi_ep_bind", rc);
    if ((rc = fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | FI_RECV)) != 0) {
      return failed("fi_ep_bind", rc);
    }
    if ((rc = fi_enable(ep)) != 0) return failed("fi_enable", rc);
    return {};
  }

  void read_completions(std::vector<DriverEvent>* events) {
    fi_cq_data_entry entries[64];
    for (;;) {
      ssize_t n = fi_cq_read(cq_.get(), entries, 64);
      if (n == -FI_EAVAIL) {
        read_error(events);
        continue;
      }
      if (n <= 0) return;
      for (ssize_t i = 0; i < n; ++i) {
        if (entries[i].flags & FI_REMOTE_CQ_DATA) {
          auto immediate = static_cast<uint32_t>(entries[i].data);
          events->push_back({DriverEvent::Kind::kImmediate, 0, 0, immediate});
        } else {
          finish(entries[i].op_context, DriverEvent::Kind::kWriteDone, {}, events);
        }
      }
    }
  }

  void read_error(std::vector<DriverEvent>* events) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(cq_.get(), &error, 0) <= 0) return;
    finish(error.op_context, DriverEvent::Kind::kWriteFailed, failed("write", -error.err), events);
  }

  void finish(void* context, DriverEvent::Kind kind, const Status& status,
              std::vector<DriverEvent>* events) {
    auto found = operations_.find(static_cast<Operation*>(context));
    if (found == operations_.end()) return;
    events->push_back({kind, found->second->link, found->second->token, 0, status});
    operations_.erase(found);
  }

  bool read_connection_event(std::vector<DriverEvent>* events) {
    alignas(fi_eq_cm_entry) std::byte buffer[sizeof(fi_eq_cm_entry) + kMaxCmData] = {};
    auto& entry = *reinterpret_cast<fi_eq_cm_entry*>(buffer);
    uint32_t kind = 0;
    ssize_t n = fi_eq_read(eq_.get(), &kind, buffer, sizeof(buffer), 0);
    if (n == -FI_EAVAIL) {
      fi_eq_err_entry error{};
      if (fi_eq_readerr(eq_.get(), &error, 0) <= 0) return false;
      end_of(error.fid, failed("connect", -error.err, "the peer did not let this link in"), events);
      return true;
    }
    if (n < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) return false;
    if (kind == FI_CONNREQ) {
      Info info(entry.info);
      let_in(info.get(), buffer + sizeof(entry), static_cast<size_t>(n) - sizeof(fi_eq_cm_entry),
             events);
    } else if (kind == FI_CONNECTED) {
      connected(entry.fid, events);
    } else if (kind == FI_SHUTDOWN) {
      end_of(entry.fid, failed("link", -FI_ECONNRESET, "the peer has gone"), events);
    }
    return true;
  }

  void let_in(fi_info* info, const std::byte* data, size_t size, std::vector<DriverEvent>* events) {
    Hello hello{};
    if (size >= sizeof(hello)) std::memcpy(&hello, data, sizeof(hello));
    Endpoint endpoint;
    bool wanted = hello.magic == kMagic && expected_.erase(hello.link) == 1;
    if (!wanted || !open_endpoint(info, &endpoint).ok()) {
      fi_reject(pep_.get(), info->handle, nullptr, 0);
      return;
    }
    int rc = fi_accept(endpoint.ep.get(), nullptr, 0);
    if (rc != 0) {
      events->push_back({DriverEvent::Kind::kLinkDown, hello.link, 0, 0, failed("fi_accept", rc)});
      return;
    }
    endpoints_.emplace(hello.link, std::move(endpoint));
  }

  Endpoint* find(fid* object, LinkId* link) {
    for (auto& [id, endpoint] : endpoints_) {
      if (endpoint.ep && &endpoint.ep->fid == object) {
        *link = id;
        return &endpoint;
      }
    }
    return nullptr;
  }

  void connected(fid* object, std::vector<DriverEvent>* events) {
    LinkId link = 0;
    Endpoint* endpoint = find(object, &link);
    if (endpoint == nullptr) return;
    endpoint->up = true;
    events->push_back({DriverEvent::Kind::kLinkUp, link});
  }

  void end_of(fid* object, const Status& status, std::vector<DriverEvent>* events) {
    LinkId link = 0;
    if (Endpoint* endpoint = find(object, &link)) take_down(link, endpoint, status, events);
  }

  // Reported once; the endpoint stays until close_link.
  void take_down(LinkId link, Endpoint* endpoint, const Status& status,
                 std::vector<DriverEvent>* events) {
    if (!endpoint->up && endpoint->deadline_ns == 0 && endpoint->initiator) return;
    endpoint->up = false;
    endpoint->deadline_ns = 0;
    events->push_back({DriverEvent::Kind::kLinkDown, link, 0, 0, status});
  }

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

}  // namespace

std::string libfabric_version() {
  uint32_t version = fi_version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

std::vector<std::string> libfabric_providers() {
  std::vector<std::string> names;
  fi_info* found = nullptr;
  if (fi_getinfo(kAnswer, nullptr, nullptr, 0, nullptr, &found) != 0) return names;
  Info all(found);
  for (fi_info* info = found; info != nullptr; info = info->next) {
    names.emplace_back(info->fabric_attr->prov_name);
  }
  return names;
}

std::unique_ptr<Driver> make_libfabric_driver(const std::string& provider,
                                              const std::string& host) {
  return std::make_unique<LibfabricDriver>(provider, host);
}

}  // namespace relevo
