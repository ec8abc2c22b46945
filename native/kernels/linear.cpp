#include "linear.h"

#include <algorithm>
#include <vector>

#include "thread_pool.h"

namespace relevo {
namespace {

constexpr int kLanes = 8;
constexpr int64_t kStride = 4 * kLanes;     // a cache line of bfloat16
constexpr int64_t kShare = 16;              // outputs that all rows go through at once
constexpr int64_t kWorthAThread = 1 << 18;  // weights below which one thread does

// Loops over small constants, unrolled so that their arrays live in registers.
#define RELEVO_UNROLL _Pragma("GCC unroll 8")

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

RELEVO_INLINE void load_lanes(const float* from, Floats& to) { std::memcpy(&to, from, sizeof(to)); }
RELEVO_INLINE void load_lanes(const bfloat16* from, Floats& to) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  Words words = __builtin_convertvector(halves, Words) << 16;
  std::memcpy(&to, &words, sizeof(to));
}

RELEVO_INLINE float sum_lanes(const Floats& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof(sums));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

template <typename T>
RELEVO_INLINE void prefetch_stride(const T* from) {
  auto* line = reinterpret_cast<const char*>(from);
  RELEVO_UNROLL
  for (size_t at = 0; at < kStride * sizeof(T); at += 64) __builtin_prefetch(line + at);
}

template <int kRows, int kOutputs, typename T>
RELEVO_INLINE void add_products(const float* x, const T* weight, int64_t in,
                                Floats (&sums)[kRows][kOutputs]) {
  Floats w[kOutputs];
  RELEVO_UNROLL
  for (int o = 0; o < kOutputs; ++o) load_lanes(weight + o * in, w[o]);
  RELEVO_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Floats row;
    load_lanes(x + r * in, row);
    RELEVO_UNROLL
    for (int o = 0; o < kOutputs; ++o) sums[r][o] += row * w[o];
  }
}

// Rows of x times outputs of the weight, each pair summed in the same order whatever the block.
template <int kRows, int kOutputs, typename T>
RELEVO_INLINE void block(const float* x, const T* weight, const T* bias, T* out, int64_t in,
                         int64_t outputs) {
  Floats sums[kRows][kOutputs] = {};
  int64_t whole = in / kLanes * kLanes;
  int64_t k = 0;
  for (; k + kStride <= whole; k += kStride) {
    // Rows are too short for the hardware to see a stream in each; together they are one.
    RELEVO_UNROLL
    for (int o = 0; o < kOutputs; ++o) prefetch_stride(weight + (kOutputs + o) * in + k);
    RELEVO_UNROLL
    for (int step = 0; step < kStride; step += kLanes) {
      add_products<kRows, kOutputs>(x + k + step, weight + k + step, in, sums);
    }
  }
  for (; k < whole; k += kLanes) add_products<kRows, kOutputs>(x + k, weight + k, in, sums);
  RELEVO_UNROLL
  for (int r = 0; r < kRows; ++r) {
    RELEVO_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      float sum = sum_lanes(sums[r][o]);
      for (k = whole; k < in; ++k) sum += x[r * in + k] * load(weight[o * in + k]);
      if (bias != nullptr) sum += load(bias[o]);
      store(&out[r * outputs + o], sum);
    }
  }
}

// Outputs first .. last-1 for all rows: the weights of a block are read from memory once.
template <int kRows, int kOutputs, typename T>
RELEVO_INLINE void rows_of(const float* x, const T* weight, const T* bias, T* out, int64_t in,
                           int64_t outputs, int64_t first, int64_t last) {
  int64_t o = first;
  for (; o + kOutputs <= last; o += kOutputs) {
    block<kRows, kOutputs>(x, weight + o * in, bias ? bias + o : nullptr, out + o, in, outputs);
  }
  for (; o < last; ++o) {
    block<kRows, 1>(x, weight + o * in, bias ? bias + o : nullptr, out + o, in, outputs);
  }
}

template <typename T>
RELEVO_INLINE void share_body(const float* x, const T* weight, const T* bias, T* out, int64_t rows,
                              int64_t in, int64_t outputs, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kShare) {
    int64_t end = std::min(o + kShare, last);
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      rows_of<4, 2>(x + r * in, weight, bias, out + r * outputs, in, outputs, o, end);
    }
    for (; r + 2 <= rows; r += 2) {
      rows_of<2, 4>(x + r * in, weight, bias, out + r * outputs, in, outputs, o, end);
    }
    if (r < rows) rows_of<1, 4>(x + r * in, weight, bias, out + r * outputs, in, outputs, o, end);
  }
}

// Function multiversioning needs plain functions, so each type has its own entry.
RELEVO_CLONES void share(const float* x, const float* weight, const float* bias, float* out,
                         int64_t rows, int64_t in, int64_t outputs, int64_t first, int64_t last) {
  share_body(x, weight, bias, out, rows, in, outputs, first, last);
}
RELEVO_CLONES void share(const float* x, const bfloat16* weight, const bfloat16* bias,
                         bfloat16* out, int64_t rows, int64_t in, int64_t outputs, int64_t first,
                         int64_t last) {
  share_body(x, weight, bias, out, rows, in, outputs, first, last);
}

template <typename T>
void linear_body(const float* x, const T* weight, const T* bias, T* out, int64_t rows, int64_t in,
                 int64_t outputs, int threads) {
  int64_t useful = std::max<int64_t>(1, in * outputs / kWorthAThread);
  int workers = static_cast<int>(std::min<int64_t>(threads, useful));
  ThreadPool::shared().run(workers, [&](int worker, int of) {
    int64_t shares = (outputs + kShare - 1) / kShare;
    int64_t first = shares * worker / of * kShare;
    int64_t last = std::min(outputs, shares * (worker + 1) / of * kShare);
    share(x, weight, bias, out, rows, in, outputs, first, last);
  });
}

}  // namespace

template <>
void linear<float>(const float* x, const float* weight, const float* bias, float* out, int64_t rows,
                   int64_t in, int64_t outputs, int threads) {
  linear_body(x, weight, bias, out, rows, in, outputs, threads);
}

template <>
void linear<bfloat16>(const bfloat16* x, const bfloat16* weight, const bfloat16* bias,
                      bfloat16* out, int64_t rows, int64_t in, int64_t outputs, int threads) {
  thread_local std::vector<float> wide;
  wide.resize(static_cast<size_t>(rows * in));
  for (int64_t i = 0; i < rows * in; ++i) wide[static_cast<size_t>(i)] = load(x[i]);
  linear_body(wide.data(), weight, bias, out, rows, in, outputs, threads);
}

}  // namespace relevo
