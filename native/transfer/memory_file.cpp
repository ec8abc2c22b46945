#include "memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace relevo {
namespace {

Status failed(const char* operation) {
  return Status::failure("memory", operation, errno, std::strerror(errno));
}

// Every page is there from the start: a first touch inside a virtual machine costs several µs,
// more than copying the page, and would fall into the forward pass.
std::byte* map(int fd, size_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

std::unique_ptr<MemoryFile> MemoryFile::create(const std::string& name, size_t size,
                                               Status* status) {
  int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    *status = failed("memfd_create");
    return nullptr;
  }
  std::byte* data = nullptr;
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
    *status = failed("ftruncate");
  } else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    *status = failed("seal");
  } else if ((data = map(fd, size)) == nullptr) {
    *status = failed("mmap");
  }
  if (data == nullptr) {
    ::close(fd);
    return nullptr;
  }
  return std::unique_ptr<MemoryFile>(new MemoryFile(fd, data, size));
}

std::unique_ptr<MemoryFile> MemoryFile::adopt(int fd, size_t size, Status* status) {
  struct stat info {};
  std::byte* data = nullptr;
  int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != size ||
      (seals & F_SEAL_SHRINK) == 0) {
    *status = Status::failure("memory", "adopt", EINVAL,
                              "the peer's memory file has another size than announced, or no seal");
  } else if ((data = map(fd, size)) == nullptr) {
    *status = failed("mmap");
  }
  if (data == nullptr) {
    ::close(fd);
    return nullptr;
  }
  return std::unique_ptr<MemoryFile>(new MemoryFile(fd, data, size));
}

Status MemoryFile::map_over(size_t offset, std::byte* address, size_t length) {
  auto misaligned = offset | reinterpret_cast<uintptr_t>(address) | length;
  if (misaligned % static_cast<size_t>(sysconf(_SC_PAGESIZE)) != 0 || offset + length > size_) {
    return Status::failure("memory", "map_over", EINVAL, "not whole pages, or beyond the file");
  }
  std::memcpy(data_ + offset, address, length);
  void* mapped = mmap(address, length, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd_, static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? failed("mmap") : Status{};
}

MemoryFile::~MemoryFile() {
  munmap(data_, size_);
  ::close(fd_);
}

}  // namespace relevo
