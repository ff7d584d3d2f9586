// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Products of matrices that fit into the cache, for the C++ files beside this one.

#pragma once

#include <cstdint>

#include "vectors.h"

namespace {

// Computes R rows and V vectors of `add * C + A B`, where A[m][k] is a[m * row + k * column].
template <int R, int V>
inline void product_tile(int64_t inner, const float* a, int64_t row, int64_t column, const float* b, float* c,
                         int64_t width, bool add) {
  Vector sums[R][V] = {};
  for (int64_t k = 0; k < inner; k++) {
    Vector right[V];
    for (int v = 0; v < V; v++) right[v] = load(b + k * width + v * WIDTH);
    for (int m = 0; m < R; m++) {
      Vector left = all(a[m * row + k * column]);
      for (int v = 0; v < V; v++) sums[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < R; m++)
    for (int v = 0; v < V; v++) {
      float* place = c + m * width + v * WIDTH;
      store(place, add ? load(place) + sums[m][v] : sums[m][v]);
    }
}

// Computes the remaining rows, at most R, all at once.
template <int R, int V>
inline void last_rows(int64_t count, int64_t inner, const float* a, int64_t row, int64_t column, const float* b,
                      float* c, int64_t width, bool add) {
  if constexpr (R > 0) {
    if (count == R)
      product_tile<R, V>(inner, a, row, column, b, c, width, add);
    else
      last_rows<R - 1, V>(count, inner, a, row, column, b, c, width, add);
  }
}

// Computes the columns from n on, V vectors at a time, and the remaining columns with fewer.
template <int V>
inline void product_columns(int64_t n, int64_t rows, int64_t inner, const float* a, int64_t row, int64_t column,
                            const float* b, float* c, int64_t width, bool add) {
  for (; n + V * WIDTH <= width; n += V * WIDTH) {
    int64_t m = 0;
    for (; m + ROWS <= rows; m += ROWS)
      product_tile<ROWS, V>(inner, a + m * row, row, column, b + n, c + m * width + n, width, add);
    last_rows<ROWS - 1, V>(rows - m, inner, a + m * row, row, column, b + n, c + m * width + n, width, add);
  }
  if constexpr (V > 1) product_columns<V / 2>(n, rows, inner, a, row, column, b, c, width, add);
}

// C [rows, width] = A [rows, inner] B [inner, width], or with `add`, C += A B.
template <bool A_IS_TRANSPOSED>
__attribute__((noinline)) void product(int64_t rows, int64_t width, int64_t inner, const float* a,
                                       const float* b, float* c, bool add) {
  const int64_t row = A_IS_TRANSPOSED ? 1 : inner, column = A_IS_TRANSPOSED ? rows : 1;
  product_columns<VECTORS>(0, rows, inner, a, row, column, b, c, width, add);
}

}  // namespace
