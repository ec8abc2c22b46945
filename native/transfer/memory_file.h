// Anonymous memory files: named by a descriptor only, so that nothing outlives the processes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "status.h"

namespace relevo {

// Owns a mapping, and the descriptor behind it. Movable only through unique_ptr; any thread may
// read `data`. Pointers into the mapping are valid as long as the MemoryFile.
class MemoryFile {
 public:
  // A new file of `size` bytes, zeroed, mapped shared. Its size is sealed, so a peer that maps it
  // cannot be made to fault by a truncation. Returns null and sets `status` on failure.
  static std::unique_ptr<MemoryFile> create(const std::string& name, size_t size, Status* status);

  // Maps a file received from a peer and takes ownership of `fd`. Refuses files whose size is not
  // `size` or not sealed.
  static std::unique_ptr<MemoryFile> adopt(int fd, size_t size, Status* status);

  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Puts the file's bytes from `offset` on in the place of this process's private memory
  // [address, address + length), whose contents move into the file: whoever has a pointer into that
  // memory now works on the file. All three are multiples of the system's page size; no other
  // thread may write there meanwhile. The mapping stays for as long as the memory's owner keeps it.
  Status map_over(size_t offset, std::byte* address, size_t length);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }

 private:
  MemoryFile(int fd, std::byte* data, size_t size) : fd_(fd), data_(data), size_(size) {}

  int fd_;
  std::byte* data_;
  size_t size_;
};

}  // namespace relevo
