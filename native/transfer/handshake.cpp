#include "handshake.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace relevo {
namespace {

constexpr size_t kMaxPacket = 4096;
constexpr size_t kMaxDescriptors = 32;

Status failed(const char* operation) {
  return Status::failure("local", operation, errno, std::strerror(errno));
}

socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // A leading NUL byte makes the name abstract; the rest need not be terminated.
  size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Descriptor open_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::release() { return std::exchange(fd_, -1); }

Descriptor listen_abstract(const std::string& name, Status* status) {
  Descriptor descriptor = open_socket();
  sockaddr_un address;
  socklen_t length = abstract_address(name, &address);
  if (!descriptor.valid() ||
      bind(descriptor.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(descriptor.get(), 64) != 0) {
    *status = failed("listen");
    return {};
  }
  return descriptor;
}

Descriptor connect_abstract(const std::string& name, Status* status) {
  Descriptor descriptor = open_socket();
  sockaddr_un address;
  socklen_t length = abstract_address(name, &address);
  if (!descriptor.valid() ||
      connect(descriptor.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    *status = failed("connect");
    return {};
  }
  return descriptor;
}

Descriptor accept_same_user(int listener) {
  Descriptor descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!descriptor.valid()) return {};
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(descriptor.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.uid != geteuid()) {
    return {};
  }
  return descriptor;
}

Status send_packet(int socket, std::span<const std::byte> packet, std::span<const int> fds) {
  iovec body{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) return failed("sendmsg");
  return {};
}

Receive receive_packet(int socket, std::vector<std::byte>* packet, std::vector<Descriptor>* fds) {
  packet->resize(kMaxPacket);
  iovec body{packet->data(), packet->size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Receive::kNothingYet;
  if (size <= 0) return Receive::kClosed;
  packet->resize(static_cast<size_t>(size));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
  return Receive::kPacket;
}

}  // namespace relevo
