#include "libfabric_driver.h"

#include <netinet/in.h>
#include <rdma/fi_rma.h>

#include <cerrno>
#include <cstring>

#include "clock.h"

namespace relevo {
namespace libfabric {

Status LibfabricDriver::open(CounterTable&, int) {
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
  if ((rc = fi_domain(fabric, info_.get(), &domain, nullptr)) != 0) return failed("fi_domain", rc);
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

Status LibfabricDriver::register_region(const Region& region) {
  fid_mr* mr = nullptr;
  uint64_t access = FI_REMOTE_WRITE | FI_WRITE;
  int rc =
      fi_mr_reg(domain_.get(), region.base, region.size, access, 0, region.id + 1, 0, &mr, nullptr);
  if (rc != 0) return failed("fi_mr_reg", rc);
  regions_.emplace(region.id, LocalRegion{region, Owned<fid_mr>(mr)});
  return {};
}

std::vector<std::byte> LibfabricDriver::address() const {
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

Post LibfabricDriver::post(const Write& write, Status* status) {
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

void LibfabricDriver::reap(std::vector<DriverEvent>* events) {
  read_completions(events);
  while (read_connection_event(events)) {
  }
  for (auto& [link, endpoint] : endpoints_) {
    if (!connecting(endpoint) || monotonic_ns() < endpoint.deadline_ns) continue;
    take_down(link, &endpoint, failed("connect", -FI_ETIMEDOUT, "no answer from the peer"), events);
  }
  events->insert(events->end(), closed_.begin(), closed_.end());
  closed_.clear();
}

void LibfabricDriver::wait_fds(std::vector<int>* fds) {
  for (fid* object : {&cq_->fid, &eq_->fid}) {
    int fd = -1;
    if (fi_control(object, FI_GETWAIT, &fd) == 0) fds->push_back(fd);
  }
}

bool LibfabricDriver::may_sleep() {
  fid* objects[] = {&cq_->fid, &eq_->fid};
  return closed_.empty() && fi_trywait(fabric_.get(), objects, 2) == FI_SUCCESS;
}

int LibfabricDriver::poll_interval_ms() const {
  for (auto& [_, endpoint] : endpoints_) {
    if (connecting(endpoint)) return 100;
  }
  return -1;
}

bool LibfabricDriver::connecting(const Endpoint& endpoint) {
  return endpoint.initiator && !endpoint.up && endpoint.ep && endpoint.deadline_ns != 0;
}

Status LibfabricDriver::failed(const char* operation, int rc, const char* detail) const {
  return Status::failure(provider_, operation, rc, detail ? detail : fi_strerror(-rc));
}

Info LibfabricDriver::lookup(const char* node, const char* service, uint64_t flags,
                             Status* status) {
  Info hints(fi_allocinfo());
  hints->ep_attr->type = FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  hints->addr_format = FI_SOCKADDR_IN;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup(provider_.c_str());
  fi_info* found = nullptr;
  int rc = fi_getinfo(kApiVersion, node, service, flags, hints.get(), &found);
  if (rc != 0) *status = failed("fi_getinfo", rc);
  return Info(rc == 0 ? found : nullptr);
}

void LibfabricDriver::read_completions(std::vector<DriverEvent>* events) {
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

void LibfabricDriver::read_error(std::vector<DriverEvent>* events) {
  fi_cq_err_entry error{};
  if (fi_cq_readerr(cq_.get(), &error, 0) <= 0) return;
  finish(error.op_context, DriverEvent::Kind::kWriteFailed, failed("write", -error.err), events);
}

void LibfabricDriver::finish(void* context, DriverEvent::Kind kind, const Status& status,
                             std::vector<DriverEvent>* events) {
  auto found = operations_.find(static_cast<Operation*>(context));
  if (found == operations_.end()) return;
  events->push_back({kind, found->second->link, found->second->token, 0, status});
  operations_.erase(found);
}

}  // namespace libfabric

std::string libfabric_version() {
  uint32_t version = fi_version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

std::vector<std::string> libfabric_providers() {
  std::vector<std::string> names;
  fi_info* found = nullptr;
  if (fi_getinfo(libfabric::kApiVersion, nullptr, nullptr, 0, nullptr, &found) != 0) return names;
  libfabric::Info all(found);
  for (fi_info* info = found; info != nullptr; info = info->next) {
    names.emplace_back(info->fabric_attr->prov_name);
  }
  return names;
}

std::unique_ptr<Driver> make_libfabric_driver(const std::string& provider,
                                              const std::string& host) {
  return std::make_unique<libfabric::LibfabricDriver>(provider, host);
}

}  // namespace relevo
