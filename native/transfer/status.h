// One result type for every operation of the transfer core that can fail.
#pragma once

#include <string>
#include <utility>

namespace relevo {

// A default Status is success. A failed one names the provider ("local", "tcp", ...), the
// operation, the provider's code (an errno or its own) and what that means in words.
struct Status {
  std::string provider;
  std::string operation;
  int code = 0;
  std::string detail;

  bool ok() const { return operation.empty(); }

  static Status failure(std::string provider, std::string operation, int code, std::string detail) {
    return {std::move(provider), std::move(operation), code, std::move(detail)};
  }
};

}  // namespace relevo
