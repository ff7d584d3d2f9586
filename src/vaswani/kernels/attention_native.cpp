// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Attention over short sequences of float32 on the CPU, forward and backward. `attention_native.py` compiles and
// calls it. The states of one head and row are copied into the core's cache; only the weights, which the backward
// pass needs, and the output leave it.
//
// T queries, S keys, P = S rounded up to whole vectors, D head width, a multiple of WIDTH.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"
#include "vectors.h"

namespace {

struct States {
  float* first;
  int64_t batch, head, row;  // numbers from one to the next

  float* at(int64_t b, int64_t h) const { return first + b * batch + h * head; }
};

void copy_rows(const float* from, int64_t row, int64_t count, int64_t width, float factor, float* to) {
  for (int64_t n = 0; n < count; n++)
    for (int64_t d = 0; d < width; d += WIDTH) store(to + n * width + d, factor * load(from + n * row + d));
}

void store_rows(const float* from, int64_t count, int64_t width, float* to, int64_t row) {
  for (int64_t n = 0; n < count; n++) std::memcpy(to + n * row, from + n * width, width * sizeof(float));
}

void transpose(const float* from, int64_t row, int64_t count, int64_t width, int64_t padded, float* to) {
  for (int64_t d = 0; d < width; d++) {
    for (int64_t n = 0; n < count; n++) to[d * padded + n] = from[n * row + d];
    std::fill(to + d * padded + count, to + (d + 1) * padded, 0.0f);
  }
}

// Computes 2^(score - largest) / their sum; zeros for rows that see nothing, and after the last key.
void softmax(float* scores, const float* mask, int64_t mask_column, int64_t keys, int64_t padded) {
  for (int64_t s = 0; mask && s < keys; s++) {
    const float bias = mask[s * mask_column];
    scores[s] = bias > LOWEST ? scores[s] + LOG2_E * bias : LOWEST;
  }
  std::fill(scores + keys, scores + padded, LOWEST);
  Vector high = all(LOWEST), total = {};
  for (int64_t s = 0; s < padded; s += WIDTH) high = larger(high, load(scores + s));
  float highest = LOWEST;
  for (int i = 0; i < WIDTH; i++) highest = std::max(highest, high[i]);
  for (int64_t s = 0; s < padded; s += WIDTH) {
    const Vector score = load(scores + s), power = exp2(score - all(highest));
    const Vector weight = score == all(LOWEST) ? Vector{} : power;  // NaN stays
    store(scores + s, weight);
    total += weight;
  }
  const float seen = sum(total);
  const Vector share = all(seen == 0.0f ? 0.0f : 1.0f / seen);
  for (int64_t s = 0; s < padded; s += WIDTH) store(scores + s, share * load(scores + s));
}

// Zeros dropped weights, and scales kept weights.
void drop(const float* from, const uint8_t* kept, float scale, int64_t queries, int64_t keys, int64_t padded,
          float* to) {
  for (int64_t t = 0; t < queries; t++)
    for (int64_t s = 0; s < keys; s++)
      to[t * padded + s] = kept[t * keys + s] ? scale * from[t * padded + s] : 0.0f;
}

}  // namespace

extern "C" {

// `attention_native.py` has the same structure.
struct Call {
  int64_t batch, heads, queries, keys, width, threads;
  States query, key, value, output, upstream, grad_query, grad_key, grad_value;
  const float* mask;  // added to the scores, or null; its strides in numbers follow
  int64_t mask_batch, mask_head, mask_row, mask_column;
  const uint8_t* kept;  // of the weights [B, H, T, S], or null
  float* weights;       // [B, H, T, P]
  double scaling, kept_scale;
};

int64_t vaswani_vector_width() { return WIDTH; }

void vaswani_attention(const Call* call) {
  const Call c = *call;
  const int64_t padded = in_whole_vectors(c.keys), area = c.queries * padded;
#pragma omp parallel num_threads(c.threads)
  {
    std::vector<float> memory(2 * c.queries * c.width + 2 * padded * c.width + area);
    float *query = memory.data(), *output = query + c.queries * c.width, *key = output + c.queries * c.width,
          *value = key + padded * c.width, *dropped = value + padded * c.width;
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < c.batch * c.heads; pair++) {
      const int64_t b = pair / c.heads, h = pair % c.heads;
      float* weights = c.weights + pair * area;
      copy_rows(c.query.at(b, h), c.query.row, c.queries, c.width, static_cast<float>(c.scaling) * LOG2_E, query);
      transpose(c.key.at(b, h), c.key.row, c.keys, c.width, padded, key);
      copy_rows(c.value.at(b, h), c.value.row, c.keys, c.width, 1.0f, value);
      product<false>(c.queries, padded, c.width, query, key, weights, false);
      const float* mask = c.mask ? c.mask + b * c.mask_batch + h * c.mask_head : nullptr;
      for (int64_t t = 0; t < c.queries; t++)
        softmax(weights + t * padded, mask ? mask + t * c.mask_row : nullptr, c.mask_column, c.keys, padded);
      if (c.kept)
        drop(weights, c.kept + pair * c.queries * c.keys, static_cast<float>(c.kept_scale), c.queries, c.keys,
             padded, dropped);
      product<false>(c.queries, c.width, padded, c.kept ? dropped : weights, value, output, false);
      store_rows(output, c.queries, c.width, c.output.at(b, h), c.output.row);
    }
  }
}

void vaswani_attention_backward(const Call* call) {
  const Call c = *call;
  const int64_t padded = in_whole_vectors(c.keys), area = c.queries * padded;
#pragma omp parallel num_threads(c.threads)
  {
    const int64_t longest = std::max(padded, c.queries);
    std::vector<float> memory((2 * c.queries + 2 * padded + longest) * c.width + 2 * area);
    float *query = memory.data(), *upstream = query + c.queries * c.width, *key = upstream + c.queries * c.width,
          *value = key + padded * c.width, *result = value + padded * c.width,
          *gradient = result + longest * c.width, *dropped = gradient + area;
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < c.batch * c.heads; pair++) {
      const int64_t b = pair / c.heads, h = pair % c.heads;
      const float *weights = c.weights + pair * area, *used = weights;
      const auto scale = static_cast<float>(c.scaling), kept_scale = static_cast<float>(c.kept_scale);
      copy_rows(c.query.at(b, h), c.query.row, c.queries, c.width, scale, query);
      copy_rows(c.upstream.at(b, h), c.upstream.row, c.queries, c.width, 1.0f, upstream);
      copy_rows(c.key.at(b, h), c.key.row, c.keys, c.width, scale, key);
      transpose(c.value.at(b, h), c.value.row, c.keys, c.width, padded, value);
      product<false>(c.queries, padded, c.width, upstream, value, gradient, false);
      if (c.kept) {
        const uint8_t* kept = c.kept + pair * c.queries * c.keys;
        drop(gradient, kept, kept_scale, c.queries, c.keys, padded, gradient);
        drop(weights, kept, kept_scale, c.queries, c.keys, padded, dropped);
        used = dropped;
      }
      product<true>(padded, c.width, c.queries, used, upstream, result, false);
      store_rows(result, c.keys, c.width, c.grad_value.at(b, h), c.grad_value.row);
      for (int64_t t = 0; t < c.queries; t++) {  // softmax's gradient is w (g - Σ w g)
        Vector total = {};
        for (int64_t s = t * padded; s < (t + 1) * padded; s += WIDTH) total += load(weights + s) * load(gradient + s);
        const Vector mean = all(sum(total));
        for (int64_t s = t * padded; s < (t + 1) * padded; s += WIDTH)
          store(gradient + s, load(weights + s) * (load(gradient + s) - mean));
      }
      product<false>(c.queries, c.width, padded, gradient, key, result, false);
      store_rows(result, c.queries, c.width, c.grad_query.at(b, h), c.grad_query.row);
      product<true>(padded, c.width, c.queries, gradient, query, result, false);
      store_rows(result, c.keys, c.width, c.grad_key.at(b, h), c.grad_key.row);
    }
  }
}

}  // extern "C"
