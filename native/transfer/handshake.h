// Descriptor passing over abstract Unix sockets: how the local driver lets a peer in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "status.h"

namespace relevo {

// A closed-on-destruction descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

// Abstract names live in the kernel only: no file is left behind by a crash. All sockets are
// SOCK_SEQPACKET (one message is one packet) and non-blocking.
Descriptor listen_abstract(const std::string& name, Status* status);
Descriptor connect_abstract(const std::string& name, Status* status);

// An invalid Descriptor when nobody waits. Peers of another user are turned away.
Descriptor accept_same_user(int listener);

// `fds` are duplicated into the receiver.
Status send_packet(int socket, std::span<const std::byte> packet, std::span<const int> fds);

enum class Receive { kPacket, kNothingYet, kClosed };
Receive receive_packet(int socket, std::vector<std::byte>* packet, std::vector<Descriptor>* fds);

}  // namespace relevo
