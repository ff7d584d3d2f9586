// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Vectors of float32 as wide as the processor's, for the C++ files beside this one.

#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;   // floats in a vector; there are 32 vector registers
constexpr int VECTORS = 4;  // vectors of each row of a product in registers at a time
#else
constexpr int WIDTH = 8;  // 16 vector registers
constexpr int VECTORS = 2;
#endif
constexpr int ROWS = 6;  // rows of a product in registers at a time
constexpr float LOWEST = -FLT_MAX;
constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.4426950408889634f;  // scores are exponents of two, because 2^x is cheaper than e^x

typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Unsigned __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

inline int64_t in_whole_vectors(int64_t count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }
inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector values) { *reinterpret_cast<Vector*>(to) = values; }
inline Vector all(float value) { return value - Vector{}; }  // `+` would cost an addition, because of -0
inline Vector larger(Vector left, Vector right) { return left > right ? left : right; }

inline float sum(Vector values) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)values);
#else
  const __m256 eight = (__m256)values;
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

inline float largest(Vector values) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)values);
#else
  const __m256 eight = (__m256)values;
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#endif
}

// 2^x for x <= 0 with a relative error of 1e-7, and 0 below 2^-126. The rounded part of x goes into the exponent; for
// the rest, at most one half, the polynomial of degree 6 has the smallest maximal relative error (by Lawson's
// algorithm).
inline Vector exp2(Vector x) {
  const Vector magic = all(12582912.0f);  // 1.5 * 2^23: adding x to it rounds x to a whole number
  x = x < all(-127.0f) ? all(-127.0f) : x;
  Vector shifted = x + magic;
  Vector rest = x - (shifted - magic);
  Vector power = all(1.5353362e-4f);
  for (float coefficient : {1.3398875e-3f, 9.6184369e-3f, 5.5503324e-2f, 2.4022648e-1f, 6.9314718e-1f, 1.0f})
    power = power * rest + coefficient;
  return (Vector)((Integers)power + ((Integers)shifted << 23));
}

}  // namespace
