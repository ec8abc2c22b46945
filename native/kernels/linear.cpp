#include "linear.h"

#include <algorithm>
#include <vector>

#include "thread_pool.h"

namespace relevo {
namespace {

constexpr int kLanes = 8;
constexpr int64_t kStep = 2 * kLanes;
constexpr int64_t kStride = 2 * kStep;      // a cache line of bfloat16
constexpr int64_t kShare = 16;              // outputs that all rows go through at once
constexpr int64_t kWorthAThread = 1 << 18;  // weights below which one thread does

// Loops over small constants, unrolled so that their arrays live in registers.
#define RELEVO_UNROLL _Pragma("GCC unroll 8")

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

// kStep values as two vectors. Those of bfloat16 come as the even ones and the odd ones, since that
// takes one instruction each; in_steps() brings x into the same order.
RELEVO_INLINE void load_step(const float* from, Floats to[2]) {
  std::memcpy(to, from, 2 * sizeof(Floats));
}
RELEVO_INLINE void load_step(const bfloat16* from, Floats to[2]) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  Words even = words << 16;
  Words odd = words & 0xffff0000u;
  std::memcpy(&to[0], &even, sizeof(even));
  std::memcpy(&to[1], &odd, sizeof(odd));
}

void in_steps(const bfloat16* x, float* to, int64_t in) {
  int64_t k = 0;
  for (; k + kStep <= in; k += kStep) {
    for (int64_t i = 0; i < kLanes; ++i) {
      to[k + i] = load(x[k + 2 * i]);
      to[k + kLanes + i] = load(x[k + 2 * i + 1]);
    }
  }
  for (; k < in; ++k) to[k] = load(x[k]);
}

RELEVO_INLINE float sum_lanes(const Floats& lanes) {
  typedef float Half __attribute__((vector_size(kLanes / 2 * sizeof(float))));
  Half halves[2];
  std::memcpy(halves, &lanes, sizeof(halves));
  Half sums = halves[0] + halves[1];
  sums += __builtin_shufflevector(sums, sums, 2, 3, 0, 1);
  return sums[0] + sums[1];
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
  Floats w[kOutputs][2];
  RELEVO_UNROLL
  for (int o = 0; o < kOutputs; ++o) load_step(weight + o * in, w[o]);
  RELEVO_UNROLL
  for (int half = 0; half < 2; ++half) {
    RELEVO_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Floats row;
      std::memcpy(&row, x + r * in + half * kLanes, sizeof(row));
      RELEVO_UNROLL
      for (int o = 0; o < kOutputs; ++o) sums[r][o] += row * w[o][half];
    }
  }
}

// Rows of x times outputs of the weight, each pair summed in the same order whatever the block.
template <int kRows, int kOutputs, typename T>
RELEVO_INLINE void block(const float* x, const T* weight, const T* bias, T* out, int64_t in,
                         int64_t outputs) {
  Floats sums[kRows][kOutputs] = {};
  int64_t whole = in / kStep * kStep;
  int64_t k = 0;
  for (; k + kStride <= whole; k += kStride) {
    // Rows are too short for the hardware to see a stream in each; together they are one.
    RELEVO_UNROLL
    for (int o = 0; o < kOutputs; ++o) prefetch_stride(weight + (kOutputs + o) * in + k);
    RELEVO_UNROLL
    for (int64_t step = 0; step < kStride; step += kStep) {
      add_products<kRows, kOutputs>(x + k + step, weight + k + step, in, sums);
    }
  }
  for (; k < whole; k += kStep) add_products<kRows, kOutputs>(x + k, weight + k, in, sums);
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
    for (int64_t r = 0; r < rows;) {
      const float* from = x + r * in;
      T* to = out + r * outputs;
      // Up to six rows at once, shared out evenly: as many sums as a machine has registers for.
      int64_t left = rows - r;
      int64_t groups = (left + 5) / 6;
      int64_t count = (left + groups - 1) / groups;
      switch (count) {
        case 6:
          rows_of<6, 2>(from, weight, bias, to, in, outputs, o, end);
          break;
        case 5:
          rows_of<5, 2>(from, weight, bias, to, in, outputs, o, end);
          break;
        case 4:
          rows_of<4, 2>(from, weight, bias, to, in, outputs, o, end);
          break;
        case 3:
          rows_of<3, 4>(from, weight, bias, to, in, outputs, o, end);
          break;
        case 2:
          rows_of<2, 4>(from, weight, bias, to, in, outputs, o, end);
          break;
        default:
          rows_of<1, 4>(from, weight, bias, to, in, outputs, o, end);
          break;
      }
      r += count;
    }
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
  for (int64_t r = 0; r < rows; ++r) in_steps(x + r * in, wide.data() + r * in, in);
  linear_body(wide.data(), weight, bias, out, rows, in, outputs, threads);
}

}  // namespace relevo
