// The libfabric driver's connections: asked for, let in, lost and closed.

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "libfabric_driver.h"

namespace relevo::libfabric {
namespace {

constexpr uint32_t kMagic = 0x524c5631;  // "RLV1"; the last digit is the handshake's version
constexpr size_t kMaxCmData = 256;

// Travels with the connection request.
struct Hello {
  uint32_t magic;
  uint32_t reserved;
  LinkId link;
};

}  // namespace

Status LibfabricDriver::connect(LinkId link, std::span<const std::byte> address,
                                uint64_t deadline_ns) {
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

void LibfabricDriver::close_link(LinkId link) {
  expected_.erase(link);
  if (auto found = endpoints_.find(link); found != endpoints_.end()) {
    if (found->second.up) fi_shutdown(found->second.ep.get(), 0);
    endpoints_.erase(found);  // closes the endpoint: nothing lands and nothing is sent any more
  }
  closed_.push_back({DriverEvent::Kind::kLinkClosed, link});
}

Status LibfabricDriver::open_endpoint(fi_info* info, Endpoint* endpoint) {
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

bool LibfabricDriver::read_connection_event(std::vector<DriverEvent>* events) {
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

void LibfabricDriver::let_in(fi_info* info, const std::byte* data, size_t size,
                             std::vector<DriverEvent>* events) {
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

Endpoint* LibfabricDriver::find(fid* object, LinkId* link) {
  for (auto& [id, endpoint] : endpoints_) {
    if (endpoint.ep && &endpoint.ep->fid == object) {
      *link = id;
      return &endpoint;
    }
  }
  return nullptr;
}

void LibfabricDriver::connected(fid* object, std::vector<DriverEvent>* events) {
  LinkId link = 0;
  Endpoint* endpoint = find(object, &link);
  if (endpoint == nullptr) return;
  endpoint->up = true;
  events->push_back({DriverEvent::Kind::kLinkUp, link});
}

void LibfabricDriver::end_of(fid* object, const Status& status, std::vector<DriverEvent>* events) {
  LinkId link = 0;
  if (Endpoint* endpoint = find(object, &link)) take_down(link, endpoint, status, events);
}

void LibfabricDriver::take_down(LinkId link, Endpoint* endpoint, const Status& status,
                                std::vector<DriverEvent>* events) {
  if (!endpoint->up && endpoint->deadline_ns == 0 && endpoint->initiator) return;
  endpoint->up = false;
  endpoint->deadline_ns = 0;
  events->push_back({DriverEvent::Kind::kLinkDown, link, 0, 0, status});
}

}  // namespace relevo::libfabric
