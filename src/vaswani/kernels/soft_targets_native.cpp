// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Divergence of rows of logits from a teacher's distributions, and its gradient, in float32 or bfloat16 on the CPU.
// `soft_targets_native.py` compiles and calls it.
//
// A row stays in the core's cache from its logits to their gradient. Everything in between is in float32. NaN stays
// NaN: comparisons are written so that they return it.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "softmax.h"
#include "stored.h"
#include "vectors.h"

namespace {

inline float at_least_lowest(float value) { return value < LOWEST ? LOWEST : value; }  // 0 * -inf is NaN
inline float term(float q, float log_q, float log_p) { return q * (at_least_lowest(log_q) - at_least_lowest(log_p)); }

// Scores, divided by the temperature, and their powers: each has space for a row in whole vectors.
struct Row {
  int64_t size;
  std::vector<float> scores, powers;

  explicit Row(int64_t size) : size(size), scores(size + WIDTH), powers(size + WIDTH) {}
  std::pair<float, float> exponentiate() { return ::exponentiate(scores.data(), size, powers.data()); }
};

// The divergence from log-probabilities of the whole vocabulary.
template <typename Number>
float of_whole(const float* teacher, float inverse, Row& row, Number* gradient) {
  const auto [highest, sum_of_powers] = row.exponentiate();
  const float log_sum = highest + std::log(sum_of_powers), scale = 1.0f / sum_of_powers;
  float loss = 0.0f;
  for (int64_t start = 0; start < row.size; start += WIDTH) {
    const int64_t count = std::min<int64_t>(WIDTH, row.size - start);
    float padded[WIDTH];
    std::fill(padded, padded + WIDTH, -INFINITE);
    std::copy(teacher + start, teacher + start + count, padded);
    const Vector lowest = all(LOWEST), log_q = load(padded), log_p = load(&row.scores[start]) - all(log_sum);
    const Vector q = exp2(log_q * LOG2_E);
    loss += sum(q * (larger(lowest, log_q) - larger(lowest, log_p)));
    const Vector difference = inverse * (load(&row.powers[start]) * all(scale) - q);
    if (gradient)
      for (int64_t i = 0; i < count; i++) narrow(difference[i], gradient + start + i);
  }
  return loss;
}

// The divergence from log-probabilities of `count` tokens and, last, of all other tokens together.
template <typename Number>
float of_tokens(const float* teacher, const int64_t* tokens, int64_t count, float inverse, Row& row, Number* gradient) {
  float highest = -INFINITE;
  std::vector<float> kept(count);
  for (int64_t j = 0; j < count; j++) {
    kept[j] = row.scores[tokens[j]];
    row.scores[tokens[j]] = -INFINITE;
    highest = std::max(highest, kept[j]);
  }
  float highest_other = -INFINITE, others = 0.0f;
  if (count < row.size) std::tie(highest_other, others) = row.exponentiate();
  highest = std::max(highest, highest_other);
  float total = others > 0.0f || others != others ? others * std::exp(highest_other - highest) : 0.0f;
  for (float score : kept) total += std::exp(score - highest);
  const float log_sum = highest + std::log(total), log_others = highest_other + std::log(others) - log_sum;
  const float q_of_others = std::exp(teacher[count]);
  float loss = term(q_of_others, teacher[count], log_others);
  const float of_others = others == 0.0f ? 0.0f : inverse * (std::exp(log_others) - q_of_others) / others;
  if (gradient)
    for (int64_t i = 0; i < row.size; i++) narrow(of_others * row.powers[i], gradient + i);
  for (int64_t j = 0; j < count; j++) {
    const float q = std::exp(teacher[j]), log_p = kept[j] - log_sum;
    loss += term(q, teacher[j], log_p);
    if (gradient) narrow(inverse * (std::exp(log_p) - q), gradient + tokens[j]);
  }
  return loss;
}

template <typename Number>
void of_rows(const Number* logits, int64_t rows, int64_t size, float inverse, const float* teacher,
             const int64_t* tokens, int64_t count, int64_t num_threads, Number* gradient, float* losses) {
#pragma omp parallel num_threads(num_threads)
  {
    Row row(size);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
      Number* const of_logits = gradient ? gradient + n * size : nullptr;
      read_scores(logits + n * size, size, inverse, row.scores.data());
      losses[n] = tokens ? of_tokens(teacher + n * (count + 1), tokens + n * count, count, inverse, row, of_logits)
                         : of_whole(teacher + n * size, inverse, row, of_logits);
    }
  }
}

}  // namespace

// Computes the divergences [rows] of logits [rows, size], times `inverse`, from log-probabilities [rows, size], or with
// tokens [rows, count], from [rows, count + 1]; and the gradient [rows, size], unless it is null.
extern "C" void vaswani_soft_targets(const void* logits, int64_t is_half, int64_t rows, int64_t size, float inverse,
                                     const float* teacher, const int64_t* tokens, int64_t count, int64_t num_threads,
                                     void* gradient, float* losses) {
  if (is_half)
    of_rows(static_cast<const BFloat16*>(logits), rows, size, inverse, teacher, tokens, count, num_threads,
            static_cast<BFloat16*>(gradient), losses);
  else
    of_rows(static_cast<const float*>(logits), rows, size, inverse, teacher, tokens, count, num_threads,
            static_cast<float*>(gradient), losses);
}
