// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// One step of a search in the decoder, in float32 on the CPU.
// `decoder_native.py` compiles and calls it.
//
// A step of a few rows reads each weight once and does little with it, so few rows use unpacked weights. More rows
// use weights that were packed in advance: panels of columns that a core keeps in registers.
//
// R rows (beams of all sources), K of each source, H heads, D head width, d = H D, T tokens before this one,
// L source length, V tokens in the vocabulary. d, D and the width of the feed-forward layers are multiples of
// WIDTH.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

constexpr int PANEL = VECTORS * WIDTH;           // columns of a panel of packed weights
constexpr int64_t DEPTH = 512;                   // rows of a panel that fit into a core's cache
constexpr int FEW = 8;                           // fewer rows use unpacked weights
constexpr int OUTPUTS = VECTORS == 4 ? 4 : 2;    // outputs of unpacked weights computed side by side

// `decoder_native.py` has structures of the same names.
struct Weights {
  const float *weight, *bias, *packed;  // [outputs, inputs], [outputs]; each panel is [1 + inputs, PANEL]
  int64_t outputs, inputs;
};

struct Norm {
  const float *weight, *bias;  // no weight: the norm is left out
  double epsilon;
};

struct Layer {
  Norm own_norm, source_norm, inner_norm;
  Weights query, key, value, output, source_query, source_output, inner, outer;
  float *own_keys, *own_values;           // [R / own_beams, H, capacity, own_beams, Dk or Dv]
  const float *source_keys, *source_values;  // [R / K, H, Dk, padded], and [R / K, H, L, Dv] by the strides
  int64_t value_strides[3];
};

struct Step {
  int64_t rows, own_beams, source_rows, heads, key_dim, value_dim, width, source_length, padded_length;
  int64_t past_length, capacity, norm_first, is_silu, num_layers, num_threads, num_embeddings;
  double scale, scaling;
  const int64_t *tokens, *ancestors;  // [R], and [R, T + 1]: the beam at each step; none for one beam
  const float *embeddings, *position, *source_bias;  // [V, d]; [d] or none; [R / K, padded] or none
  const Layer* layers;
  Norm embed_norm, last_norm;
  Weights vocabulary;
  float *states, *normed, *query, *key, *value, *attended, *inner, *scores, *logits;
};

// ------------------------------------------------------------------------------------------------ products

// R rows and V vectors of C = start + A B, or C += start + A B.
template <int R, int V>
inline void tile(int64_t inner, const float* a, int64_t a_row, const float* b, int64_t b_row, const float* start,
                 float* c, int64_t c_row, bool add) {
  Vector sums[R][V];
  for (int m = 0; m < R; m++)
    for (int v = 0; v < V; v++) {
      sums[m][v] = start ? load(start + v * WIDTH) : Vector{};
      if (add) sums[m][v] += load(c + m * c_row + v * WIDTH);
    }
  for (int64_t k = 0; k < inner; k++) {
    Vector right[V];
    for (int v = 0; v < V; v++) right[v] = load(b + k * b_row + v * WIDTH);
    for (int m = 0; m < R; m++) {
      const Vector left = all(a[m * a_row + k]);
      for (int v = 0; v < V; v++) sums[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < R; m++)
    for (int v = 0; v < V; v++) store(c + m * c_row + v * WIDTH, sums[m][v]);
}

// Computes all rows of V vectors of columns; the last rows use a smaller tile.
template <int V, int R = ROWS>
inline void tiles(int64_t rows, int64_t inner, const float* a, int64_t a_row, const float* b, int64_t b_row,
                  const float* start, float* c, int64_t c_row, bool add) {
  int64_t m = 0;
  for (; m + R <= rows; m += R)
    tile<R, V>(inner, a + m * a_row, a_row, b, b_row, start, c + m * c_row, c_row, add);
  if constexpr (R > 1)
    if (m < rows)
      tiles<V, R - 1>(rows - m, inner, a + m * a_row, a_row, b, b_row, start, c + m * c_row, c_row, add);
}

// C [rows, columns] = A [rows, inner] B [inner, columns], but for columns that fill no whole vector.
template <int V = VECTORS>
void small_product(int64_t rows, int64_t columns, int64_t inner, const float* a, int64_t a_row, const float* b,
                   int64_t b_row, float* c, int64_t c_row) {
  int64_t n = 0;
  for (; n + V * WIDTH <= columns; n += V * WIDTH)
    tiles<V>(rows, inner, a, a_row, b + n, b_row, nullptr, c + n, c_row, false);
  if constexpr (V > 1)
    if (n < columns) small_product<V / 2>(rows, columns - n, inner, a, a_row, b + n, b_row, c + n, c_row);
}

void packed_product(const Weights& weights, int64_t rows, const float* x, float* y, bool add) {
  const int64_t inputs = weights.inputs, outputs = weights.outputs, panels = (outputs + PANEL - 1) / PANEL;
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels; panel++) {
    const float* bias = weights.packed + panel * (1 + inputs) * PANEL;
    const int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, outputs - first);
    std::vector<float> rest(columns < PANEL ? rows * PANEL : 0);  // for the last panel, if it is incomplete
    float* to = columns < PANEL ? rest.data() : y + first;
    const int64_t to_row = columns < PANEL ? PANEL : outputs;
    for (int64_t k = 0; k < inputs; k += DEPTH)
      tiles<VECTORS>(rows, std::min(DEPTH, inputs - k), x + k, inputs, bias + (1 + k) * PANEL, PANEL,
                     k ? nullptr : bias, to, to_row, k || (add && columns == PANEL));
    if (columns < PANEL)
      for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < columns; n++) {
          float& place = y[row * outputs + first + n];
          place = rest[row * PANEL + n] + (add ? place : 0.0f);
        }
  }
}

// Computes N outputs of R rows, each a dot product with a row of the weights.
template <int R, int N>
inline void dot_products(const Weights& weights, int64_t n, const float* x, float* y, bool add) {
  const int64_t inputs = weights.inputs;
  const float* rows = weights.weight + n * inputs;
  Vector sums[R][N] = {};
  for (int64_t k = 0; k < inputs; k += WIDTH) {
    Vector right[N];
    for (int j = 0; j < N; j++) right[j] = load(rows + j * inputs + k);
    for (int m = 0; m < R; m++) {
      const Vector left = load(x + m * inputs + k);
      for (int j = 0; j < N; j++) sums[m][j] += left * right[j];
    }
  }
  for (int m = 0; m < R; m++)
    for (int j = 0; j < N; j++) {
      float& place = y[m * weights.outputs + n + j];
      place = sum(sums[m][j]) + (weights.bias ? weights.bias[n + j] : 0.0f) + (add ? place : 0.0f);
    }
}

template <int R>
void product_of_few(const Weights& weights, int64_t rows, const float* x, float* y, bool add) {
  if constexpr (R > 1)
    if (rows < R) return product_of_few<R - 1>(weights, rows, x, y, add);
  const int64_t outputs = weights.outputs, groups = (outputs + OUTPUTS - 1) / OUTPUTS;
#pragma omp for schedule(static)
  for (int64_t group = 0; group < groups; group++) {
    int64_t n = group * OUTPUTS;
    if (n + OUTPUTS <= outputs)
      dot_products<R, OUTPUTS>(weights, n, x, y, add);
    else
      for (; n < outputs; n++) dot_products<R, 1>(weights, n, x, y, add);
  }
}

// y [rows, outputs] = x [rows, inputs] Wᵀ + bias, or with `add`, y += the same. All threads of a team call it.
void product(const Weights& weights, int64_t rows, const float* x, float* y, bool add = false) {
  if (weights.packed)
    packed_product(weights, rows, x, y, add);
  else
    product_of_few<FEW - 1>(weights, rows, x, y, add);
}

// ---------------------------------------------------------------------------------------- norms, activation

void normalize_row(const Norm& norm, int64_t width, const float* x, float* y) {
  Vector total{};
  for (int64_t i = 0; i < width; i += WIDTH) total += load(x + i);
  const float mean = sum(total) / static_cast<float>(width);
  Vector squares{};
  for (int64_t i = 0; i < width; i += WIDTH) {
    const Vector centred = load(x + i) - all(mean);
    squares += centred * centred;
  }
  const double variance = sum(squares) / static_cast<double>(width);
  const Vector factor = all(static_cast<float>(1.0 / std::sqrt(variance + norm.epsilon)));
  for (int64_t i = 0; i < width; i += WIDTH) {
    Vector result = (load(x + i) - all(mean)) * factor * load(norm.weight + i);
    store(y + i, norm.bias ? result + load(norm.bias + i) : result);
  }
}

// Normalizes the rows of x [R, d] into y and returns y; returns x if there is no norm.
const float* normalized(const Norm& norm, const Step& step, const float* x, float* y) {
  if (!norm.weight) return x;
#pragma omp for schedule(static)
  for (int64_t row = 0; row < step.rows; row++)
    normalize_row(norm, step.width, x + row * step.width, y + row * step.width);
  return y;
}

void activate(const Step& step, int64_t width) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < step.rows; row++)
    for (float* x = step.inner + row * width; x < step.inner + (row + 1) * width; x += WIDTH) {
      const Vector value = load(x);
      if (!step.is_silu) {
        store(x, value > Vector{} ? value : (value != value ? value : Vector{}));  // NaN stays
        continue;
      }
      // x / (1 + e^-x), computed from e^-|x|, which cannot overflow
      const Vector magnitude = value < Vector{} ? -value : value;
      const Vector power = exp2(magnitude * -LOG2_E);
      store(x, value * (value < Vector{} ? power : all(1.0f)) / (1.0f + power));
    }
}

// ------------------------------------------------------------------------------------------------ attention

// Turns scores into 2^(score · factor + bias - largest), up to a multiple of WIDTH; returns their sum.
float powers(float* scores, int64_t count, float factor, const float* bias) {
  const int64_t whole = in_whole_vectors(count);
  for (int64_t i = count; i < whole; i++) scores[i] = LOWEST;
  Vector most = all(LOWEST);
  for (int64_t i = 0; i < whole; i += WIDTH) {
    Vector score = load(scores + i) * factor;
    if (bias) score += load(bias + i);
    most = (score > most) | (score != score) ? score : most;
    store(scores + i, score);
  }
  float largest = LOWEST;
  for (int i = 0; i < WIDTH; i++) largest = most[i] > largest || most[i] != most[i] ? most[i] : largest;
  Vector total{};
  for (int64_t i = 0; i < whole; i += WIDTH) {
    const Vector power = exp2(load(scores + i) - all(largest));
    store(scores + i, power);
    total += power;
  }
  return sum(total);
}

void scale(float* x, int64_t width, float factor) {
  for (int64_t i = 0; i < width; i += WIDTH) store(x + i, load(x + i) * factor);
}

float dot(const float* a, const float* b, int64_t width) {
  Vector total{};
  int64_t i = 0;
  for (; i + WIDTH <= width; i += WIDTH) total += load(a + i) * load(b + i);
  float result = sum(total);
  for (; i < width; i++) result += a[i] * b[i];
  return result;
}

// Writes keys and values of this step into the tree; each row attends to its ancestors and itself.
void attend_to_own(const Step& step, const Layer& layer, float* scores) {
  const int64_t heads = step.heads, beams = step.own_beams, length = step.past_length + 1;
  const int64_t key_dim = step.key_dim, value_dim = step.value_dim;
  const float factor = static_cast<float>(step.scaling) * LOG2_E;
#pragma omp for schedule(static)
  for (int64_t pair = 0; pair < step.rows * heads; pair++) {
    const int64_t row = pair / heads, head = pair % heads;
    const int64_t node = (((row / beams) * heads + head) * step.capacity + step.past_length) * beams + row % beams;
    std::memcpy(layer.own_keys + node * key_dim, step.key + pair * key_dim, key_dim * sizeof(float));
    std::memcpy(layer.own_values + node * value_dim, step.value + pair * value_dim, value_dim * sizeof(float));
  }
#pragma omp for schedule(static)
  for (int64_t pair = 0; pair < step.rows * heads; pair++) {
    const int64_t row = pair / heads, head = pair % heads;
    const int64_t first = ((row / beams) * heads + head) * step.capacity * beams;
    const int64_t* path = step.ancestors ? step.ancestors + row * length : nullptr;
    const float* query = step.query + pair * key_dim;
    for (int64_t t = 0; t < length; t++) {
      const float* key = layer.own_keys + (first + t * beams + (path ? path[t] : 0)) * key_dim;
      scores[t] = dot(query, key, key_dim);
    }
    const float total = powers(scores, length, factor, nullptr);
    float* output = step.attended + pair * value_dim;
    const auto value = [&](int64_t t) {
      return layer.own_values + (first + t * beams + (path ? path[t] : 0)) * value_dim;
    };
    int64_t i = 0;
    for (; i + WIDTH <= value_dim; i += WIDTH) {
      Vector sums{};
      for (int64_t t = 0; t < length; t++) sums += scores[t] * load(value(t) + i);
      store(output + i, sums / total);
    }
    for (; i < value_dim; i++) {
      float number = 0.0f;
      for (int64_t t = 0; t < length; t++) number += scores[t] * value(t)[i];
      output[i] = number / total;
    }
  }
}

// The rows of a source attend to its keys and values.
void attend_to_source(const Step& step, const Layer& layer, float* scores) {
  const int64_t heads = step.heads, rows = step.source_rows, padded = step.padded_length;
  const int64_t key_dim = step.key_dim, value_dim = step.value_dim, query_row = heads * key_dim;
  const float factor = static_cast<float>(step.scaling) * LOG2_E;
#pragma omp for schedule(static)
  for (int64_t pair = 0; pair < step.rows / rows * heads; pair++) {
    const int64_t source = pair / heads, head = pair % heads;
    const float* query = step.query + source * rows * query_row + head * key_dim;
    float* attended = step.attended + source * rows * step.width + head * value_dim;
    const float* values = layer.source_values + source * layer.value_strides[0] + head * layer.value_strides[1];
    const float* bias = step.source_bias ? step.source_bias + source * padded : nullptr;
    small_product(rows, padded, key_dim, query, query_row, layer.source_keys + pair * key_dim * padded, padded,
                  scores, padded);
    for (int64_t row = 0; row < rows; row++) {
      float* weights = scores + row * padded;
      const float total = powers(weights, step.source_length, factor, bias);
      scale(weights, padded, 1.0f / total);
    }
    const int64_t row_stride = layer.value_strides[2];
    small_product(rows, value_dim, step.source_length, scores, padded, values, row_stride, attended, step.width);
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = value_dim - value_dim % WIDTH; i < value_dim; i++) {
        float number = 0.0f;
        for (int64_t s = 0; s < step.source_length; s++)
          number += scores[row * padded + s] * values[s * row_stride + i];
        attended[row * step.width + i] = number;
      }
  }
}

// ------------------------------------------------------------------------------------------------- the step

void embed(const Step& step) {
  const int64_t width = step.width;
#pragma omp for schedule(static)
  for (int64_t row = 0; row < step.rows; row++) {
    const float* from = step.embeddings + step.tokens[row] * width;
    float* to = step.states + row * width;
    for (int64_t i = 0; i < width; i += WIDTH) {
      const Vector state = load(from + i) * static_cast<float>(step.scale);
      store(to + i, step.position ? state + load(step.position + i) : state);
    }
    if (step.embed_norm.weight) normalize_row(step.embed_norm, width, to, to);
  }
}

// states = LayerNorm(states + output(x)), or without the norm where it came before (section 5.4).
void add(const Step& step, const Norm& norm, const Weights& output, const float* x) {
  product(output, step.rows, x, step.states, true);
  if (!step.norm_first) normalized(norm, step, step.states, step.states);
}

void compute(const Step& step, float* scores) {
  embed(step);
  const auto before = [&](const Norm& norm) {
    return step.norm_first ? normalized(norm, step, step.states, step.normed) : step.states;
  };
  for (int64_t i = 0; i < step.num_layers; i++) {
    const Layer& layer = step.layers[i];
    const float* x = before(layer.own_norm);
    product(layer.query, step.rows, x, step.query);
    product(layer.key, step.rows, x, step.key);
    product(layer.value, step.rows, x, step.value);
    attend_to_own(step, layer, scores);
    add(step, layer.own_norm, layer.output, step.attended);

    product(layer.source_query, step.rows, before(layer.source_norm), step.query);
    attend_to_source(step, layer, scores);
    add(step, layer.source_norm, layer.source_output, step.attended);

    product(layer.inner, step.rows, before(layer.inner_norm), step.inner);
    activate(step, layer.inner.outputs);
    add(step, layer.inner_norm, layer.outer, step.inner);
  }
  product(step.vocabulary, step.rows, normalized(step.last_norm, step, step.states, step.normed), step.logits);
}

}  // namespace

extern "C" {

int64_t vaswani_size_of_Weights() { return sizeof(Weights); }
int64_t vaswani_size_of_Layer() { return sizeof(Layer); }
int64_t vaswani_size_of_Step() { return sizeof(Step); }

int64_t vaswani_vector_width() { return WIDTH; }

// Returns the number of floats in packed weights [outputs, inputs].
int64_t vaswani_packed_size(int64_t outputs, int64_t inputs) {
  return (outputs + PANEL - 1) / PANEL * PANEL * (1 + inputs);
}

void vaswani_pack(const Weights* weights, float* packed, int64_t num_threads) {
  const int64_t inputs = weights->inputs, outputs = weights->outputs, panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t panel = 0; panel < panels; panel++) {
    float* to = packed + panel * (1 + inputs) * PANEL;
    const int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, outputs - first);
    for (int64_t n = 0; n < PANEL; n++) to[n] = weights->bias && n < columns ? weights->bias[first + n] : 0.0f;
    to += PANEL;
    for (int64_t k = 0; k < inputs; k += WIDTH)
      for (int64_t n = 0; n < PANEL; n++)
        for (int64_t i = k; i < k + WIDTH; i++)
          to[i * PANEL + n] = n < columns ? weights->weight[(first + n) * inputs + i] : 0.0f;
  }
}

// Returns the first row whose token has no embedding, without computing anything; -1 if all have one.
int64_t vaswani_decoder_step(const Step* step) {
  for (int64_t row = 0; row < step->rows; row++)
    if (step->tokens[row] < 0 || step->tokens[row] >= step->num_embeddings) return row;
  const int64_t most = std::max(step->past_length + 1, step->source_rows * step->padded_length) + WIDTH;
#pragma omp parallel num_threads(step->num_threads)
  compute(*step, step->scores + omp_get_thread_num() * most);
  return -1;
}
}
