// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// The best tokens of each row of scores, in float32 on the CPU.
// `best_tokens.py` compiles and calls it.
//
// A row is read twice: for the largest score of each block of tokens, which shows the few blocks that can contain
// the best tokens, and for the sum of powers. No probability is stored.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 4 * WIDTH;

struct Row {
  const float* scores;
  int64_t size;

  // Calls `use` with each vector of scores; the last vector is filled up with -infinity.
  template <typename Use>
  void each_vector(Use use) const {
    int64_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH) use(i, load(scores + i));
    if (i == size) return;
    float rest[WIDTH];
    std::fill(std::copy(scores + i, scores + size, rest), rest + WIDTH, -INFINITE);
    use(i, load(rest));
  }
};

// Finds the largest score of each block; returns whether the row has a NaN.
bool largest_of_blocks(const Row& row, std::vector<float>& blocks) {
  Integers is_nan{};
  Vector most = all(-INFINITE);
  blocks.clear();
  row.each_vector([&](int64_t i, Vector scores) {
    is_nan |= (Integers)(scores != scores);
    most = larger(most, scores);
    if ((i + WIDTH) % BLOCK && i + WIDTH < row.size) return;
    float largest = -INFINITE;
    for (int lane = 0; lane < WIDTH; lane++) largest = std::max(largest, most[lane]);
    blocks.push_back(largest);
    most = all(-INFINITE);
  });
  for (int lane = 0; lane < WIDTH; lane++)
    if (is_nan[lane]) return true;
  return false;
}

float log_of_sum(const Row& row, float largest) {
  Vector total{};
  row.each_vector([&](int64_t, Vector scores) { total += exp2((scores - all(largest)) * LOG2_E); });
  return std::log(sum(total));
}

// Finds the largest scores in descending order, and their tokens; of equal scores, the first tokens.
void best_of_row(const Row& row, int64_t count, bool normalize, float* values, int64_t* tokens) {
  thread_local std::vector<float> blocks, sorted;
  thread_local std::vector<std::pair<float, int64_t>> found;
  const bool has_nan = largest_of_blocks(row, blocks);
  const float largest = *std::max_element(blocks.begin(), blocks.end());
  if (has_nan || (normalize && !std::isfinite(largest))) {
    for (int64_t i = 0; i < count; i++) values[i] = NAN, tokens[i] = i;
    return;
  }
  float least = -INFINITE;  // `count` blocks have a score at least as large, so all best scores are at least as large
  if (count <= static_cast<int64_t>(blocks.size())) {
    sorted = blocks;
    std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<float>());
    least = sorted[count - 1];
  }
  found.clear();
  for (int64_t block = 0; block < static_cast<int64_t>(blocks.size()); block++)
    if (blocks[block] >= least)
      for (int64_t i = block * BLOCK; i < std::min(row.size, (block + 1) * BLOCK); i++)
        if (row.scores[i] >= least) found.emplace_back(-row.scores[i], i);
  std::partial_sort(found.begin(), found.begin() + count, found.end());
  const float shift = normalize ? log_of_sum(row, largest) : 0.0f;
  for (int64_t i = 0; i < count; i++) {
    tokens[i] = found[i].second;
    values[i] = normalize ? (-found[i].first - largest) - shift : -found[i].first;
  }
}

}  // namespace

// Finds the largest `count` scores of each row [rows, size] and their tokens, [rows, count]; with `normalize`, as
// log-probabilities. All values of a row with a NaN are NaN.
extern "C" void vaswani_best_tokens(const float* scores, int64_t rows, int64_t size, int64_t count, int64_t normalize,
                                    int64_t num_threads, float* values, int64_t* tokens) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t row = 0; row < rows; row++)
    best_of_row({scores + row * size, size}, count, normalize, values + row * count, tokens + row * count);
}
