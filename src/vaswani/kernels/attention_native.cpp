// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Attention over short sequences of float32 on the CPU, forward and backward. `attention_native.py` compiles and
// calls it. The states of one head and row are copied into the core's cache; only the weights, which the backward
// pass needs, and the output leave it.
//
// T queries, S keys, P = S rounded up to whole vectors. In the cache, heads are filled up to whole vectors with zeros.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"
#include "vectors.h"

namespace {

typedef uint8_t Bytes __attribute__((vector_size(WIDTH), aligned(1)));

struct States {
  float* first;
  int64_t batch, head, row;  // numbers from one to the next

  float* at(int64_t b, int64_t h) const { return first + b * batch + h * head; }
};

void copy_rows(const float* from, int64_t row, int64_t count, int64_t width, float factor, float* to) {
  const int64_t filled = in_whole_vectors(width), whole = width - width % WIDTH;
  for (int64_t n = 0; n < count; n++, from += row, to += filled) {
    for (int64_t d = 0; d < whole; d += WIDTH) store(to + d, factor * load(from + d));
    for (int64_t d = whole; d < filled; d++) to[d] = d < width ? factor * from[d] : 0.0f;
  }
}

void store_rows(const float* from, int64_t count, int64_t width, float* to, int64_t row) {
  const int64_t filled = in_whole_vectors(width);
  for (int64_t n = 0; n < count; n++) std::memcpy(to + n * row, from + n * filled, width * sizeof(float));
}

void transpose(const float* from, int64_t row, int64_t count, int64_t width, int64_t padded, float* to) {
  for (int64_t n = 0; n < count; n++)
    for (int64_t d = 0; d < width; d++) to[d * padded + n] = from[n * row + d];
  for (int64_t d = 0; d < width; d++) std::fill(to + d * padded + count, to + (d + 1) * padded, 0.0f);
  std::fill(to + width * padded, to + in_whole_vectors(width) * padded, 0.0f);
}

// Writes what is added to a row of scores, in whole vectors: LOWEST for keys that the row does not see.
void read_mask(const float* mask, int64_t column, int64_t keys, int64_t padded, float* bias) {
  for (int64_t s = 0; s < keys; s++) bias[s] = mask ? std::max(LOG2_E * mask[s * column], LOWEST) : 0.0f;
  std::fill(bias + keys, bias + padded, LOWEST);
}

// Computes 2^(score - largest) / their sum; zeros for rows that see nothing, and after the last key.
void softmax(float* scores, const float* bias, int64_t padded) {
  Vector high = all(LOWEST), total = {};
  for (int64_t s = 0; s < padded; s += WIDTH) {
    const Vector added = load(bias + s), score = added > all(LOWEST) ? load(scores + s) + added : all(LOWEST);
    store(scores + s, score);
    high = larger(high, score);
  }
  const Vector highest = all(largest(high));
  for (int64_t s = 0; s < padded; s += WIDTH) {
    const Vector score = load(scores + s), power = exp2(score - highest);
    const Vector weight = score == all(LOWEST) ? Vector{} : power;  // NaN stays
    store(scores + s, weight);
    total += weight;
  }
  const float seen = sum(total);
  const Vector share = all(seen == 0.0f ? 0.0f : 1.0f / seen);
  for (int64_t s = 0; s < padded; s += WIDTH) store(scores + s, share * load(scores + s));
}

// `attention_native.py` has the same structure.
struct Call {
  int64_t batch, heads, queries, keys, key_width, value_width, threads;
  States query, key, value, output, upstream, grad_query, grad_key, grad_value;
  const float* mask;  // added to the scores, or null; its strides in numbers follow
  int64_t mask_batch, mask_head, mask_row, mask_column;
  const uint8_t* kept;  // of the weights [B, H, T, S], or null
  float* weights;       // [B, H, T, P]
  double scaling, kept_scale;
};

// Zeros what belongs to dropped weights of one head of one row, [T, P], and scales the rest.
void drop(const Call& c, int64_t pair, const float* from, float* to) {
  const int64_t padded = in_whole_vectors(c.keys), area = c.queries * c.keys;
  const uint8_t *kept = c.kept + pair * area, *end = c.kept + c.batch * c.heads * area;  // of all heads and rows
  const auto scale = static_cast<float>(c.kept_scale);
  for (int64_t t = 0; t < c.queries; t++)
    for (int64_t s = 0; s < padded; s += WIDTH) {  // after the last key, weights and gradients are zero
      const uint8_t* here = kept + t * c.keys + s;
      Bytes bytes = {};
      std::memcpy(&bytes, here, here + WIDTH <= end ? WIDTH : end - here);
      const Integers is_kept = __builtin_convertvector(bytes, Integers);
      const int64_t place = t * padded + s;
      store(to + place, is_kept != 0 ? scale * load(from + place) : Vector{});
    }
}

}  // namespace

extern "C" {

int64_t vaswani_size_of_Call() { return sizeof(Call); }

int64_t vaswani_vector_width() { return WIDTH; }

void vaswani_attention(const Call* call) {
  const Call c = *call;
  const int64_t padded = in_whole_vectors(c.keys), area = c.queries * padded;
  const int64_t key_width = in_whole_vectors(c.key_width), value_width = in_whole_vectors(c.value_width);
#pragma omp parallel num_threads(c.threads)
  {
    std::vector<float> memory((c.queries + padded) * (key_width + value_width) + area + padded);
    float *query = memory.data(), *output = query + c.queries * key_width,
          *key = output + c.queries * value_width, *value = key + padded * key_width,
          *dropped = value + padded * value_width, *bias = dropped + area;
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < c.batch * c.heads; pair++) {
      const int64_t b = pair / c.heads, h = pair % c.heads;
      float* weights = c.weights + pair * area;
      const float factor = static_cast<float>(c.scaling) * LOG2_E;
      copy_rows(c.query.at(b, h), c.query.row, c.queries, c.key_width, factor, query);
      transpose(c.key.at(b, h), c.key.row, c.keys, c.key_width, padded, key);
      copy_rows(c.value.at(b, h), c.value.row, c.keys, c.value_width, 1.0f, value);
      product<false>(c.queries, padded, key_width, query, key, weights, false);
      const float* mask = c.mask ? c.mask + b * c.mask_batch + h * c.mask_head : nullptr;
      for (int64_t t = 0; t < c.queries; t++) {
        if (t == 0 || c.mask_row != 0)  // one row for all queries, if the mask is of padding
          read_mask(mask ? mask + t * c.mask_row : nullptr, c.mask_column, c.keys, padded, bias);
        softmax(weights + t * padded, bias, padded);
      }
      if (c.kept) drop(c, pair, weights, dropped);
      product<false>(c.queries, value_width, padded, c.kept ? dropped : weights, value, output, false);
      store_rows(output, c.queries, c.value_width, c.output.at(b, h), c.output.row);
    }
  }
}

void vaswani_attention_backward(const Call* call) {
  const Call c = *call;
  const int64_t padded = in_whole_vectors(c.keys), area = c.queries * padded;
  const int64_t key_width = in_whole_vectors(c.key_width), value_width = in_whole_vectors(c.value_width);
  const int64_t longest = std::max(padded, c.queries), widest = std::max(key_width, value_width);
#pragma omp parallel num_threads(c.threads)
  {
    std::vector<float> memory((c.queries + padded) * (key_width + value_width) + longest * widest + 2 * area);
    float *query = memory.data(), *upstream = query + c.queries * key_width,
          *key = upstream + c.queries * value_width, *value = key + padded * key_width,
          *result = value + padded * value_width, *gradient = result + longest * widest, *dropped = gradient + area;
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < c.batch * c.heads; pair++) {
      const int64_t b = pair / c.heads, h = pair % c.heads;
      const float *weights = c.weights + pair * area, *used = weights;
      const auto scale = static_cast<float>(c.scaling);
      copy_rows(c.query.at(b, h), c.query.row, c.queries, c.key_width, scale, query);
      copy_rows(c.upstream.at(b, h), c.upstream.row, c.queries, c.value_width, 1.0f, upstream);
      copy_rows(c.key.at(b, h), c.key.row, c.keys, c.key_width, scale, key);
      transpose(c.value.at(b, h), c.value.row, c.keys, c.value_width, padded, value);
      product<false>(c.queries, padded, value_width, upstream, value, gradient, false);
      if (c.kept) {
        drop(c, pair, gradient, gradient);
        drop(c, pair, weights, dropped);
        used = dropped;
      }
      product<true>(padded, value_width, c.queries, used, upstream, result, false);
      store_rows(result, c.keys, c.value_width, c.grad_value.at(b, h), c.grad_value.row);
      for (int64_t t = 0; t < c.queries; t++) {  // softmax's gradient is w (g - Σ w g)
        Vector total = {};
        for (int64_t s = t * padded; s < (t + 1) * padded; s += WIDTH) total += load(weights + s) * load(gradient + s);
        const Vector mean = all(sum(total));
        for (int64_t s = t * padded; s < (t + 1) * padded; s += WIDTH)
          store(gradient + s, load(weights + s) * (load(gradient + s) - mean));
      }
      product<false>(c.queries, key_width, padded, gradient, key, result, false);
      store_rows(result, c.queries, c.key_width, c.grad_query.at(b, h), c.grad_query.row);
      product<true>(padded, key_width, c.queries, gradient, query, result, false);
      store_rows(result, c.keys, c.key_width, c.grad_key.at(b, h), c.grad_key.row);
    }
  }
}

}  // extern "C"
