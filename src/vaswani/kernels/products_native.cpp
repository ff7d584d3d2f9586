// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Products of float32 matrices on the CPU. `products_native.py` compiles and calls it.
//
// The right matrix is copied ("packed") into panels that are a few vectors wide. A panel stays in the core's cache
// while all rows of the left matrix are multiplied by it. The left matrix is read in place, with any strides (Goto
// and van de Geijn, 2008, "Anatomy of High-Performance Matrix Multiplication"). Each element is summed by one
// thread, in an order that depends only on the shape.
//
// M rows, N columns, K numbers summed for each element.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "vectors.h"

namespace {

constexpr int64_t PANEL = VECTORS * WIDTH;  // columns
constexpr int64_t DEPTH = 512;              // of K at a time: a panel of AVX-512 has 128 KiB

struct Matrix {
  const float* first;
  int64_t row, column;  // numbers from one to the next

  const float* at(int64_t m, int64_t n) const { return first + m * row + n * column; }
};

// Multiplies R rows by one panel: adds the products to C, or to a row of biases.
template <int R>
inline void product_tile(int64_t depth, const float* a, int64_t row, int64_t column, const float* panel,
                         const float* bias, float* c, int64_t width) {
  Vector sums[R][VECTORS];
  for (int m = 0; m < R; m++)
    for (int v = 0; v < VECTORS; v++) sums[m][v] = load((bias ? bias : c + m * width) + v * WIDTH);
  for (int64_t k = 0; k < depth; k++) {
    Vector right[VECTORS];
    for (int v = 0; v < VECTORS; v++) right[v] = load(panel + k * PANEL + v * WIDTH);
    for (int m = 0; m < R; m++) {
      Vector left = all(a[m * row + k * column]);
      for (int v = 0; v < VECTORS; v++) sums[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < R; m++)
    for (int v = 0; v < VECTORS; v++) store(c + m * width + v * WIDTH, sums[m][v]);
}

template <int R>
inline void any_rows(int64_t rows, int64_t depth, const float* a, int64_t row, int64_t column, const float* panel,
                     const float* bias, float* c, int64_t width) {
  if constexpr (R > 0) {
    if (rows == R)
      product_tile<R>(depth, a, row, column, panel, bias, c, width);
    else
      any_rows<R - 1>(rows, depth, a, row, column, panel, bias, c, width);
  }
}

// Copies `width` columns of `depth` rows, and fills the panel's width with zeros.
void pack(Matrix b, int64_t depth, int64_t width, float* panel) {
  if (width < PANEL) std::fill(panel, panel + depth * PANEL, 0.0f);
  for (int64_t start = 0; start < depth; start += WIDTH) {
    const int64_t end = std::min<int64_t>(start + WIDTH, depth);
    if (b.column == 1)
      for (int64_t k = start; k < end; k++) std::memcpy(panel + k * PANEL, b.at(k, 0), width * sizeof(float));
    else  // transposed: a cache line of each column at a time
      for (int64_t n = 0; n < width; n++)
        for (int64_t k = start; k < end; k++) panel[k * PANEL + n] = *b.at(k, n);
  }
}

// Computes the rows from `start` to `end` of one panel's `width` columns.
void panel_product(int64_t start, int64_t end, int64_t width, int64_t depth, Matrix a, Matrix b, const float* bias,
                   bool add, float* c, int64_t c_row, float* panel) {
  alignas(64) float biases[PANEL] = {}, part[ROWS * PANEL] = {};
  if (bias) std::memcpy(biases, bias, width * sizeof(float));
  for (int64_t k = 0; k < depth; k += DEPTH) {
    const int64_t count = std::min(DEPTH, depth - k);
    const float* first = add || k > 0 ? nullptr : biases;
    pack({b.at(k, 0), b.row, b.column}, count, width, panel);
    for (int64_t m = start; m < end; m += ROWS) {
      const int64_t rows = std::min<int64_t>(ROWS, end - m);
      float* to = c + m * c_row;
      if (width == PANEL) {
        any_rows<ROWS>(rows, count, a.at(m, k), a.row, a.column, panel, first, to, c_row);
        continue;
      }
      for (int64_t r = 0; r < rows; r++) std::memcpy(part + r * PANEL, to + r * c_row, width * sizeof(float));
      any_rows<ROWS>(rows, count, a.at(m, k), a.row, a.column, panel, first, part, PANEL);
      for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * c_row, part + r * PANEL, width * sizeof(float));
    }
  }
}

}  // namespace

extern "C" {

// C [M, N] = A [M, K] B [K, N], plus a bias [N] if there is one, or with `add`, C += A B. The rows of C are `c_row`
// numbers apart.
void vaswani_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_column,
                     const float* b, int64_t b_row, int64_t b_column, const float* bias, int64_t add, float* c,
                     int64_t c_row, int64_t threads) {
  const int64_t panels = (n + PANEL - 1) / PANEL;
  // Each thread gets the same amount of work: many panels, or parts of their rows.
  const int64_t parts = panels >= 8 * threads ? 1 : threads / std::gcd(threads, panels);
  const int64_t size = (m / parts + ROWS) / ROWS * ROWS;
#pragma omp parallel num_threads(threads)
  {
    alignas(64) static thread_local float panel[DEPTH * PANEL];
#pragma omp for schedule(static)
    for (int64_t task = 0; task < panels * parts; task++) {
      const int64_t column = task / parts * PANEL, start = std::min(task % parts * size, m);
      panel_product(start, std::min(start + size, m), std::min(PANEL, n - column), k, {a, a_row, a_column},
                    {b + column * b_column, b_row, b_column}, bias ? bias + column : nullptr, add, c + column,
                    c_row, panel);
    }
  }
}

}  // extern "C"
