#include "attention.h"

#include <algorithm>
#include <cstring>

#include "thread_pool.h"

namespace relevo {
namespace {

constexpr int64_t kMaxDim = 256;
constexpr int64_t kBlock = 16;           // context tokens at once
constexpr int64_t kMaxGroup = 16;        // query heads that share a KV head
constexpr int64_t kWorthAThread = 4096;  // context tokens x KV heads below which one thread does

RELEVO_INLINE float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// e^x for x <= 0, to about 1e-7 of its value, in operations that a loop can do on vectors: 2^i
// times the Taylor series of what is left, which lies within ln(2)/2.
RELEVO_INLINE float exp_negative(float x) {
  x = std::max(x, -87.0f);
  auto i = static_cast<int32_t>(x * 1.44269504f - 0.5f);
  float f = x - static_cast<float>(i) * 0.693145752f - static_cast<float>(i) * 1.42860677e-6f;
  float series = 1.0f / 5040;
  series = series * f + 1.0f / 720;
  series = series * f + 1.0f / 120;
  series = series * f + 1.0f / 24;
  series = series * f + 1.0f / 6;
  series = series * f + 0.5f;
  series = series * f + 1.0f;
  series = series * f + 1.0f;
  uint32_t bits = static_cast<uint32_t>(i + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return series * power;
}

template <typename T>
RELEVO_INLINE void rotate(T* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    float a = load(x[i]);
    float b = load(x[i + half]);
    store(&x[i], a * cos[i] - b * sin[i]);
    store(&x[i + half], b * cos[i] + a * sin[i]);
  }
}

template <typename T>
RELEVO_INLINE void rotate_and_store_body(T* qkv, const float* cos, const float* sin,
                                         const int64_t* positions, const int64_t* slots,
                                         int64_t tokens, int64_t heads, const PoolLayer& pool) {
  int64_t dim = pool.head_dim;
  int64_t half = dim / 2;
  int64_t row = (heads + 2 * pool.kv_heads) * dim;
  int64_t plane = pool.page_tokens * dim;
  for (int64_t t = 0; t < tokens; ++t) {
    T* q = qkv + t * row;
    T* k = q + heads * dim;
    T* v = k + pool.kv_heads * dim;
    const float* c = cos + positions[t] * half;
    const float* s = sin + positions[t] * half;
    for (int64_t h = 0; h < heads + pool.kv_heads; ++h) rotate(q + h * dim, c, s, half);
    T* page = static_cast<T*>(pool.base) + slots[t] / pool.page_tokens * pool.page_elements;
    T* cell = page + slots[t] % pool.page_tokens * dim;
    for (int64_t h = 0; h < pool.kv_heads; ++h) {
      std::memcpy(cell + (2 * h) * plane, k + h * dim, static_cast<size_t>(dim) * sizeof(T));
      std::memcpy(cell + (2 * h + 1) * plane, v + h * dim, static_cast<size_t>(dim) * sizeof(T));
    }
  }
}

// All query heads of one KV head for one sequence: online softmax over blocks of tokens, whose keys
// and values are widened once for all of the heads. kDim: the head dimension where it is a common
// one, so that loops over it are unrolled; 0: any.
template <int kDim, typename T>
RELEVO_INLINE void attend_head(const T* q, T* out, const int32_t* pages, int64_t length,
                               int64_t kv_head, int64_t group, float scale, const PoolLayer& pool) {
  const int64_t dim = kDim != 0 ? kDim : pool.head_dim;
  int64_t plane = pool.page_tokens * dim;
  alignas(64) float query[kMaxGroup][kMaxDim];
  alignas(64) float total[kMaxGroup][kMaxDim];
  alignas(64) float keys[kBlock * kMaxDim];
  alignas(64) float values[kBlock * kMaxDim];
  float weight[kMaxGroup];
  float peak[kMaxGroup];
  float score[kBlock];
  for (int64_t g = 0; g < group; ++g) {
    for (int64_t d = 0; d < dim; ++d) query[g][d] = load(q[g * dim + d]) * scale;
    for (int64_t d = 0; d < dim; ++d) total[g][d] = 0;
    weight[g] = 0;
    peak[g] = -3.0e38f;
  }
  for (int64_t first = 0, n = 0; first < length; first += n) {
    int64_t offset = first % pool.page_tokens;
    n = std::min({kBlock, pool.page_tokens - offset, length - first});
    const T* at = static_cast<const T*>(pool.base) +
                  pages[first / pool.page_tokens] * pool.page_elements + 2 * kv_head * plane +
                  offset * dim;
    for (int64_t i = 0; i < n * dim; ++i) keys[i] = load(at[i]);
    for (int64_t i = 0; i < n * dim; ++i) values[i] = load(at[plane + i]);
    for (int64_t g = 0; g < group; ++g) {
      float highest = peak[g];
      for (int64_t t = 0; t < n; ++t) {
        score[t] = dot(query[g], keys + t * dim, dim);
        highest = std::max(highest, score[t]);
      }
      float rescale = exp_negative(peak[g] - highest);
      peak[g] = highest;
      weight[g] *= rescale;
      for (int64_t t = 0; t < n; ++t) score[t] = exp_negative(score[t] - highest);
      for (int64_t t = 0; t < n; ++t) weight[g] += score[t];
      for (int64_t d = 0; d < dim; ++d) total[g][d] *= rescale;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t d = 0; d < dim; ++d) total[g][d] += score[t] * values[t * dim + d];
      }
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float norm = 1.0f / weight[g];
    for (int64_t d = 0; d < dim; ++d) store(&out[g * dim + d], total[g][d] * norm);
  }
}

template <typename T>
RELEVO_INLINE void attend_any(const T* q, T* out, const int32_t* pages, int64_t length,
                              int64_t kv_head, int64_t group, float scale, const PoolLayer& pool) {
  if (pool.head_dim == 64) {
    attend_head<64>(q, out, pages, length, kv_head, group, scale, pool);
  } else if (pool.head_dim == 128) {
    attend_head<128>(q, out, pages, length, kv_head, group, scale, pool);
  } else {
    attend_head<0>(q, out, pages, length, kv_head, group, scale, pool);
  }
}

template <typename T>
RELEVO_INLINE void gather_body(T* keys, T* values, const int32_t* pages, int64_t length,
                               const PoolLayer& pool) {
  int64_t dim = pool.head_dim;
  int64_t plane = pool.page_tokens * dim;
  for (int64_t h = 0; h < pool.kv_heads; ++h) {
    for (int64_t first = 0; first < length; first += pool.page_tokens) {
      const T* page = static_cast<const T*>(pool.base) +
                      pages[first / pool.page_tokens] * pool.page_elements + 2 * h * plane;
      auto n = static_cast<size_t>(std::min(pool.page_tokens, length - first) * dim);
      std::memcpy(keys + (h * length + first) * dim, page, n * sizeof(T));
      std::memcpy(values + (h * length + first) * dim, page + plane, n * sizeof(T));
    }
  }
}

// Function multiversioning needs plain functions, so each type has its own entry.
RELEVO_CLONES void attend(const float* q, float* out, const int32_t* pages, int64_t length,
                          int64_t kv_head, int64_t group, float scale, const PoolLayer& pool) {
  attend_any(q, out, pages, length, kv_head, group, scale, pool);
}
RELEVO_CLONES void attend(const bfloat16* q, bfloat16* out, const int32_t* pages, int64_t length,
                          int64_t kv_head, int64_t group, float scale, const PoolLayer& pool) {
  attend_any(q, out, pages, length, kv_head, group, scale, pool);
}

template <typename T>
void decode_body(const T* q, int64_t q_stride, T* out, const int32_t* pages, int64_t max_pages,
                 const int32_t* lengths, int64_t rows, int64_t heads, float scale, int threads,
                 const PoolLayer& pool) {
  int64_t group = heads / pool.kv_heads;
  int64_t jobs = rows * pool.kv_heads;
  auto run = [&](int worker, int workers) {
    for (int64_t job = worker; job < jobs; job += workers) {
      int64_t row = job / pool.kv_heads;
      int64_t head = job % pool.kv_heads;
      int64_t at = head * group * pool.head_dim;
      attend(q + row * q_stride + at, out + row * heads * pool.head_dim + at,
             pages + row * max_pages, lengths[row], head, group, scale, pool);
    }
  };
  int64_t work = 0;
  for (int64_t row = 0; row < rows; ++row) work += lengths[row] * pool.kv_heads;
  int64_t useful = std::max<int64_t>(1, work / kWorthAThread);
  ThreadPool::shared().run(static_cast<int>(std::min({useful, int64_t{threads}, jobs})), run);
}

}  // namespace

template <>
RELEVO_CLONES void rotate_and_store<float>(float* qkv, const float* cos, const float* sin,
                                           const int64_t* positions, const int64_t* slots,
                                           int64_t tokens, int64_t heads, const PoolLayer& pool) {
  rotate_and_store_body(qkv, cos, sin, positions, slots, tokens, heads, pool);
}
template <>
RELEVO_CLONES void rotate_and_store<bfloat16>(bfloat16* qkv, const float* cos, const float* sin,
                                              const int64_t* positions, const int64_t* slots,
                                              int64_t tokens, int64_t heads,
                                              const PoolLayer& pool) {
  rotate_and_store_body(qkv, cos, sin, positions, slots, tokens, heads, pool);
}

template <>
void decode_attention<float>(const float* q, int64_t q_stride, float* out, const int32_t* pages,
                             int64_t max_pages, const int32_t* lengths, int64_t rows, int64_t heads,
                             float scale, int threads, const PoolLayer& pool) {
  decode_body(q, q_stride, out, pages, max_pages, lengths, rows, heads, scale, threads, pool);
}
template <>
void decode_attention<bfloat16>(const bfloat16* q, int64_t q_stride, bfloat16* out,
                                const int32_t* pages, int64_t max_pages, const int32_t* lengths,
                                int64_t rows, int64_t heads, float scale, int threads,
                                const PoolLayer& pool) {
  decode_body(q, q_stride, out, pages, max_pages, lengths, rows, heads, scale, threads, pool);
}

template <>
void gather<float>(float* keys, float* values, const int32_t* pages, int64_t length,
                   const PoolLayer& pool) {
  gather_body(keys, values, pages, length, pool);
}
template <>
void gather<bfloat16>(bfloat16* keys, bfloat16* values, const int32_t* pages, int64_t length,
                      const PoolLayer& pool) {
  gather_body(keys, values, pages, length, pool);
}

}  // namespace relevo
