// The 32 bits that travel with every write: which counter it belongs to and how much it counts.
#pragma once

#include <cstdint>

namespace relevo {

constexpr uint32_t kSlots = 1u << 12;
constexpr uint32_t kGenerations = 1u << 8;
constexpr uint32_t kMaxParts = (1u << 12) - 1;

// slot:12 | generation:8 | parts:12. `parts` is how many page parts the write carried, 1..4095.
struct Immediate {
  uint32_t slot;
  uint32_t generation;
  uint32_t parts;

  uint32_t pack() const { return slot << 20 | generation << 12 | parts; }

  static Immediate unpack(uint32_t bits) {
    return {bits >> 20, (bits >> 12) & (kGenerations - 1), bits & kMaxParts};
  }
};

}  // namespace relevo
