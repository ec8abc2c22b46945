// CPU kernels on the pool's page layout [head][K,V][token][dim].
//
// All pointers are borrowed for the call. Values are float or bfloat16 (its upper 16 bits);
// arithmetic is float. Functions may run on any thread; those with `threads` share one pool.
#pragma once

#include <cstdint>

#include "simd.h"

namespace relevo {

struct PoolLayer {
  void* base;             // of this layer
  int64_t page_elements;  // kv_heads * 2 * page_tokens * head_dim
  int64_t page_tokens;
  int64_t kv_heads;
  int64_t head_dim;
};

// Rotates q and k of a fused projection and stores k and v into their pages.
//   qkv        [tokens, (heads + 2 * kv_heads) * head_dim], q is rotated in place
//   cos, sin   [positions, head_dim / 2]
//   positions  [tokens]; slots [tokens] = page * page_tokens + offset
template <typename T>
void rotate_and_store(T* qkv, const float* cos, const float* sin, const int64_t* positions,
                      const int64_t* slots, int64_t tokens, int64_t heads, const PoolLayer& pool);

// One query token per sequence against its paged context (grouped-query attention).
//   q        row r begins at q + r * q_stride, [heads, head_dim]
//   out      [rows, heads * head_dim]
//   pages    [rows, max_pages] page numbers; lengths [rows] = context tokens, the query's included
template <typename T>
void decode_attention(const T* q, int64_t q_stride, T* out, const int32_t* pages, int64_t max_pages,
                      const int32_t* lengths, int64_t rows, int64_t heads, float scale, int threads,
                      const PoolLayer& pool);

// Copies the first `length` tokens of a sequence out of its pages.
//   keys, values  [kv_heads, length, head_dim]
template <typename T>
void gather(T* keys, T* values, const int32_t* pages, int64_t length, const PoolLayer& pool);

}  // namespace relevo
