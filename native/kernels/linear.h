// The product of a few rows with a weight matrix: what a decode step spends its time on.
//
// A library's matrix product is made for many rows; at one to sixteen it reads the weights several
// times slower than memory delivers them. This one is bound by memory there. In here a row's result
// does not depend on which rows are beside it.
#pragma once

#include <cstdint>

#include "simd.h"

namespace relevo {

//   x       [rows, in], weight [outputs, in], bias [outputs] or null, out [rows, outputs]
// All contiguous, borrowed for the call. Sums are float.
template <typename T>
void linear(const T* x, const T* weight, const T* bias, T* out, int64_t rows, int64_t in,
            int64_t outputs, int threads);

}  // namespace relevo
