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
