// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// The softmax of a row of logits, for the C++ files beside this one that compute losses.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "stored.h"
#include "vectors.h"

namespace {

// Writes the logits, times `factor`, as scores in whole vectors; the last vector is filled up with -infinity.
template <typename Number>
void read_scores(const Number* logits, int64_t size, float factor, float* scores) {
  for (int64_t i = 0; i < size; i++) scores[i] = factor * widen(logits[i]);
  std::fill(scores + size, scores + in_whole_vectors(size), -INFINITE);
}

// Writes exp(score - highest score) to `powers`, which may be `scores`; returns the highest score and the sum of the
// powers.
inline std::pair<float, float> exponentiate(const float* scores, int64_t size, float* powers) {
  Vector high = all(-INFINITE), total{};
  for (int64_t i = 0; i < size; i += WIDTH) high = larger(high, load(scores + i));
  const float highest = largest(high);
  const float lowered = std::max(highest, LOWEST);  // if all are -infinity
  for (int64_t i = 0; i < size; i += WIDTH) {
    const Vector power = exp2((load(scores + i) - all(lowered)) * LOG2_E);
    store(powers + i, power);
    total += power;
  }
  return {highest, sum(total)};
}

}  // namespace
