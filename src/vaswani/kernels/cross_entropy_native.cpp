// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Cross-entropy of rows of logits and its gradient, in place, in float32 or bfloat16 on the CPU.
// `cross_entropy_native.py` compiles and calls it.
//
// A row stays in the core's cache from the search of its largest logit to its gradient; PyTorch's operators pass over
// all rows for each step. Everything between reading and writing is in float32.

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "softmax.h"
#include "stored.h"
#include "vectors.h"

namespace {

// The learned distribution: a share for every token, and a further share for the target.
struct Shares {
  float of_target, of_each;
};

float sum_of(const float* numbers, int64_t size) {
  Vector total{};
  int64_t i = 0;
  for (; i + WIDTH <= size; i += WIDTH) total += load(numbers + i);
  float found = sum(total);
  for (; i < size; i++) found += numbers[i];
  return found;
}

// Returns log Σ exp(logits) - Σ q * logits, and overwrites the logits with softmax(logits) - q. `row` has space for
// the logits in whole vectors.
template <typename Number>
float of_row(Number* logits, int64_t size, int64_t target, Shares shares, bool wants_gradient, float* row) {
  read_scores(logits, size, 1.0f, row);
  const float of_target = row[target], of_all = shares.of_each ? shares.of_each * sum_of(row, size) : 0.0f;
  const auto [highest, sum_of_powers] = exponentiate(row, size, row);
  if (wants_gradient) {
    const float scale = 1.0f / sum_of_powers;
    row[target] -= shares.of_target * sum_of_powers;
    for (int64_t i = 0; i < size; i++) narrow(scale * row[i] - shares.of_each, logits + i);
  }
  return std::log(sum_of_powers) + highest - shares.of_target * of_target - of_all;
}

template <typename Number>
void of_rows(Number* logits, int64_t rows, int64_t size, const int64_t* targets, Shares shares, bool wants_gradient,
             int64_t num_threads, float* losses) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> row(size + WIDTH);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++)
      losses[n] = of_row(logits + n * size, size, targets[n], shares, wants_gradient, row.data());
  }
}

}  // namespace

// Computes the losses [rows] of logits [rows, size] with targets int64 [rows]; the gradient overwrites the logits.
extern "C" void vaswani_cross_entropy(void* logits, int64_t is_half, int64_t rows, int64_t size, const int64_t* targets,
                                      float share, float share_of_each, int64_t wants_gradient, int64_t num_threads,
                                      float* losses) {
  const Shares shares{share, share_of_each};
  if (is_half)
    of_rows(static_cast<BFloat16*>(logits), rows, size, targets, shares, wants_gradient, num_threads, losses);
  else
    of_rows(static_cast<float*>(logits), rows, size, targets, shares, wants_gradient, num_threads, losses);
}
