// Python's view of the CPU kernels. Tensors come as addresses: the caller
// (engine/attention, engine/models/linear) has checked dtype, shape and contiguity, and keeps them
// alive for the call.

#include <nanobind/nanobind.h>

#include "attention.h"
#include "linear.h"

namespace nb = nanobind;
using namespace relevo;

namespace {

template <typename P>
P* at(uint64_t address) {
  return reinterpret_cast<P*>(address);
}

template <typename Call>
void by_type(bool is_bfloat16, Call call) {
  nb::gil_scoped_release unlocked;
  if (is_bfloat16) {
    call(bfloat16{});
  } else {
    call(float{});
  }
}

}  // namespace

NB_MODULE(_kernels, m) {
  nb::class_<PoolLayer>(m, "PoolLayer")
      .def(
          "__init__",
          [](PoolLayer* self, uint64_t base, int64_t page_tokens, int64_t kv_heads,
             int64_t head_dim) {
            new (self) PoolLayer{at<void>(base), kv_heads * 2 * page_tokens * head_dim, page_tokens,
                                 kv_heads, head_dim};
          },
          nb::arg("base"), nb::arg("page_tokens"), nb::arg("kv_heads"), nb::arg("head_dim"));

  m.def("rotate_and_store",
        [](bool is_bfloat16, uint64_t qkv, uint64_t cos, uint64_t sin, uint64_t positions,
           uint64_t slots, int64_t tokens, int64_t heads, const PoolLayer& pool) {
          by_type(is_bfloat16, [&]<typename T>(T) {
            rotate_and_store<T>(at<T>(qkv), at<const float>(cos), at<const float>(sin),
                                at<const int64_t>(positions), at<const int64_t>(slots), tokens,
                                heads, pool);
          });
        });

  m.def("decode_attention", [](bool is_bfloat16, uint64_t q, int64_t q_stride, uint64_t out,
                               uint64_t pages, int64_t max_pages, uint64_t lengths, int64_t rows,
                               int64_t heads, float scale, int threads, const PoolLayer& pool) {
    by_type(is_bfloat16, [&]<typename T>(T) {
      decode_attention<T>(at<const T>(q), q_stride, at<T>(out), at<const int32_t>(pages), max_pages,
                          at<const int32_t>(lengths), rows, heads, scale, threads, pool);
    });
  });

  m.def("gather", [](bool is_bfloat16, uint64_t keys, uint64_t values, uint64_t pages,
                     int64_t length, const PoolLayer& pool) {
    by_type(is_bfloat16, [&]<typename T>(T) {
      gather<T>(at<T>(keys), at<T>(values), at<const int32_t>(pages), length, pool);
    });
  });

  m.def("linear", [](bool is_bfloat16, uint64_t x, uint64_t weight, uint64_t bias, uint64_t out,
                     int64_t rows, int64_t in, int64_t outputs, int threads) {
    by_type(is_bfloat16, [&]<typename T>(T) {
      linear<T>(at<const T>(x), at<const T>(weight), at<const T>(bias), at<T>(out), rows, in,
                outputs, threads);
    });
  });
}
