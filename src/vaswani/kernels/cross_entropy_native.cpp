// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Cross-entropy of rows of logits and its gradient, in place, in float32 or bfloat16 on the CPU.
// `cross_entropy_native.py` compiles and calls it.
//
// A row stays in the core's cache from its largest logit to its gradient; PyTorch's operators pass over all rows
// for each step. Everything between reading and writing is in float32.

#include <omp.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
};

inline Vector read(const float* from) { return load(from); }
inline void write(float* to, Vector values) { store(to, values); }

inline Vector read(const Bfloat16* from) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return (Vector)_mm512_slli_epi32(bits, 16);
#else
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (Vector)_mm256_slli_epi32(bits, 16);
#endif
}

// Rounds to the nearest, of two to the even one.
inline void write(Bfloat16* to, Vector values) {
  const Unsigned bits = (Unsigned)values, odd = (bits >> 16) & 1;
  const Unsigned rounded = (bits + 0x7fff + odd) >> 16, of_nan = bits - bits + 0x7fc0;
  const Unsigned upper = values == values ? rounded : of_nan;
  for (int i = 0; i < WIDTH; i++) to[i].bits = static_cast<uint16_t>(upper[i]);
}

// Calls `use` with a whole vector of numbers at a time; the last ones are copied, as others follow them or none.
template <typename Number, typename Use>
void each_vector(Number* numbers, int64_t size, Number lowest, Use use) {
  int64_t i = 0;
  for (; i + WIDTH <= size; i += WIDTH) use(i, numbers + i);
  if (i == size) return;
  Number rest[WIDTH];
  for (int64_t lane = 0; lane < WIDTH; lane++) rest[lane] = i + lane < size ? numbers[i + lane] : lowest;
  use(i, rest);
  for (int64_t lane = 0; i + lane < size; lane++) numbers[i + lane] = rest[lane];
}

// Returns log Σ exp(logits) - share * logits[target], and writes softmax(logits) - share * one-hot over the logits.
// `row` has room for them in whole vectors.
template <typename Number>
float of_row(Number* logits, int64_t size, Number lowest, int64_t target, float share, bool wants_gradient, float* row) {
  Vector high = all(-INFINITE), total{};
  each_vector(logits, size, lowest, [&](int64_t i, const Number* from) {
    const Vector values = read(from);
    store(row + i, values);
    high = larger(high, values);
  });
  float highest = -INFINITE;
  for (int lane = 0; lane < WIDTH; lane++) highest = high[lane] > highest ? high[lane] : highest;
  const float of_target = row[target];
  for (int64_t i = 0; i < size; i += WIDTH) {
    const Vector power = exp2((load(row + i) - all(highest)) * LOG2_E);
    store(row + i, power);
    total += power;
  }
  const float sum_of_powers = sum(total);
  if (wants_gradient) {
    const float scale = 1.0f / sum_of_powers;
    row[target] -= share * sum_of_powers;
    each_vector(logits, size, lowest, [&](int64_t i, Number* to) { write(to, scale * load(row + i)); });
  }
  return std::log(sum_of_powers) + highest - share * of_target;
}

template <typename Number>
void of_rows(Number* logits, int64_t rows, int64_t size, Number lowest, const int64_t* targets, float share,
             bool wants_gradient, int64_t num_threads, float* losses) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> row(size + WIDTH);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++)
      losses[n] = of_row(logits + n * size, size, lowest, targets[n], share, wants_gradient, row.data());
  }
}

}  // namespace

// Of logits [rows, size] with targets int64 [rows], the losses [rows]; the gradient takes the place of the logits.
extern "C" void vaswani_cross_entropy(void* logits, int64_t is_half, int64_t rows, int64_t size, const int64_t* targets,
                                      float share, int64_t wants_gradient, int64_t num_threads, float* losses) {
  if (is_half)
    of_rows(static_cast<Bfloat16*>(logits), rows, size, Bfloat16{0xff80}, targets, share, wants_gradient, num_threads,
            losses);
  else
    of_rows(static_cast<float*>(logits), rows, size, -INFINITE, targets, share, wants_gradient, num_threads, losses);
}
