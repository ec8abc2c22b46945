// What the kernels share: the two kinds of values, and how one build serves every machine.
#pragma once

#include <cstdint>
#include <cstring>

// The loader picks the clone of a function that this x86-64 machine can run. (Not under
// ThreadSanitizer: the picking would run before its runtime is there.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define RELEVO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RELEVO_CLONES
#endif
// Bodies are inlined into clones, so that they are compiled once for each.
#define RELEVO_INLINE static inline __attribute__((always_inline))

namespace relevo {

struct bfloat16 {
  uint16_t bits;
};

RELEVO_INLINE float load(float value) { return value; }
RELEVO_INLINE float load(bfloat16 value) {
  uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

RELEVO_INLINE void store(float* to, float value) { *to = value; }
RELEVO_INLINE void store(bfloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x7fff + ((bits >> 16) & 1);  // round to nearest even
  to->bits = static_cast<uint16_t>(bits >> 16);
}

}  // namespace relevo
