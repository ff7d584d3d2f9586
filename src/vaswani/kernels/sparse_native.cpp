// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Sparse attention of float32 on the CPU, forward and backward. `sparse_native.py` compiles and calls it.
//
// A query block processes the key blocks that it sees one after the other, as FlashAttention does (Dao et al.,
// 2022, arXiv:2205.14135): their b x b weights never leave the core's caches, and keys and values are read in
// place. Weights are transposed, with a row for each key. So softmax needs only vectors of queries, and the right
// operand of every product is stored row by row.
//
// n tokens, N blocks of b tokens, D head width, L key blocks at most for each query block, G query blocks that
// see everything. b and D are multiples of WIDTH.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "products.h"
#include "stored.h"
#include "vectors.h"

namespace {

void transpose(const float* from, int64_t rows, int64_t columns, float factor, float* to) {
  for (int64_t first = 0; first < rows; first += WIDTH)
    for (int64_t column = 0; column < columns; column++)
      for (int64_t row = first; row < first + WIDTH; row++)
        to[column * rows + row] = factor * from[row * columns + column];
}

uint64_t mix(uint64_t number) {  // SplitMix64 (Steele et al., 2014)
  number += 0x9E3779B97F4A7C15;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

// The factors of weights: 0 or 1 / (1 - p). They depend only on the seed and the weight's place, so that the
// backward pass draws them again.
struct Dropout {
  uint32_t dropped_levels;  // of 65,536
  uint64_t seed;            // of this sequence and head

  struct OfPair {
    uint32_t key, dropped_levels;
    Vector scale;

    Vector factors(int64_t place) const {
      Unsigned lane = {};
      for (int i = 0; i < WIDTH; i++) lane[i] = i;
      Unsigned number = (lane + static_cast<uint32_t>(place)) * 0x9E3779B1u + key;
      for (uint32_t multiplier : {0x85EBCA6Bu, 0xC2B2AE35u}) {  // MurmurHash3's finalizer (Appleby, 2011)
        number ^= number >> 16;
        number *= multiplier;
      }
      Integers level = (Integers)(number >> 16);
      return level >= static_cast<int32_t>(dropped_levels) ? scale : Vector{};
    }
  };

  OfPair of(int64_t pair) const {
    auto key = static_cast<uint32_t>(mix(seed + static_cast<uint64_t>(pair)));
    return {key, dropped_levels, all(65536.0f / static_cast<float>(65536 - dropped_levels))};
  }
};

// The type in which numbers are stored; computations use float32.
enum class Stored : int64_t { FLOAT32, BFLOAT16, FLOAT16 };

// States [B, H, n, D]; the D numbers of a row are contiguous.
struct States {
  char* first;
  int64_t batch, head, row;  // bytes from one to the next
};

constexpr int64_t LINE = 16;  // floats; scratch memory is allocated in whole cache lines

int64_t whole_lines(int64_t count) { return (count + LINE - 1) / LINE * LINE; }

// The arguments of the functions at the end; `sparse_native.py` has the same structure.
struct Call {
  int64_t batch, heads, length, num_blocks, size, width;  // B, H, n, N, b, D
  int64_t num_seen, num_global_rows;                      // L, G
  int64_t causal, num_threads, num_segments, dropped_levels, seed;
  Stored stored;
  double scaling;
  States query, key, value, output, upstream, grad_query, grad_key, grad_value;
  const float* bias;          // [B, N + 1, b], 0 for visible keys, less for hidden ones; the last block is empty
  const int64_t* key_blocks;  // [H, N - G, L], N for none
  float* log_sums;            // [B, H, N * b], log2 of the sum of 2^score of each row
  float* scratch;             // [threads, num_scratch]
  float* partial;             // [B, H, segments, 2, N * b, D], gradients of keys and values, or null
  double* seconds;            // [3], the time of each stage in one thread, or null

  int64_t head_size() const { return num_blocks * size * width; }

  // A segment's part of the gradients of all keys (0) or values (1) of a head: [N * b, D].
  float* partial_gradient(int64_t place, int64_t segment, int64_t which) const {
    return partial + ((place * num_segments + segment) * 2 + which) * head_size();
  }

  int64_t num_scratch() const {  // floats of each thread, as `differentiate` needs them, which needs more
    return 8 * whole_lines(head_size()) + 3 * whole_lines(size * width) + 3 * whole_lines(size * size) +
           3 * whole_lines(size);
  }
};

enum Stage { PRODUCTS, SOFTMAX, REST };

class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds(seconds) { lap(REST); }

  // Adds the time since the last lap to this stage.
  void lap(Stage stage) {
    if (seconds == nullptr) return;
    const Clock::time_point now = Clock::now();
    if (before != Clock::time_point()) seconds[stage] += std::chrono::duration<double>(now - before).count();
    before = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* const seconds;
  Clock::time_point before;
};

// Blocks of a sequence from `first` to before `end`.
struct Range {
  int64_t first, end;
};

// A segment of one head of one sequence, and the memory of the thread that computes it. If there are fewer heads
// than threads, each head's query blocks are divided into segments.
class Head {
 public:
  const Call& call;
  const int64_t size, width, num_blocks;
  const Range everything, own;  // all blocks, and the query blocks of this segment
  Stopwatch watch;
  const int64_t place, segment;  // `place` is the index of the sequence's head, among B * H

  Head(const Call& call, int64_t place, int64_t segment, float* scratch)
      : call(call),
        size(call.size),
        width(call.width),
        num_blocks(call.num_blocks),
        everything{0, num_blocks},
        own{start_of(segment), start_of(segment + 1)},
        watch(call.seconds),
        place(place),
        segment(segment),
        sequence(place / call.heads),
        head(place % call.heads),
        scratch(scratch),
        dropout{static_cast<uint32_t>(call.dropped_levels),
                mix(static_cast<uint64_t>(call.seed) + mix(static_cast<uint64_t>(place)))} {}

  float* take(int64_t count) {
    float* taken = scratch;
    scratch += whole_lines(count);
    return taken;
  }

  // Returns states of this head as float32 [N * b, D]: in place if possible, else a copy of the blocks in `range`, with
  // zeros after the sequence.
  const float* read(const States& states, Range range) {
    if (lie_ready(states)) return row<float>(states, 0);
    float* copy = take(call.head_size());
    as_stored([&](auto number) {
      for (int64_t i = rows(range).first; i < rows(range).end; i++)
        for (int64_t d = 0; d < width; d++) copy[i * width + d] = widen(row<decltype(number)>(states, i)[d]);
    });
    std::memset(copy + call.length * width, 0, sizeof(float) * (call.head_size() - call.length * width));
    return copy;
  }

  // Returns where to write a result [N * b, D]; `finish` then copies blocks of it into the states.
  float* write(const States& states) {
    return lie_ready(states) ? row<float>(states, 0) : take(call.head_size());
  }

  void finish(const float* result, const States& states, Range range) const {
    if (lie_ready(states) && result == row<float>(states, 0)) return;
    as_stored([&](auto number) {
      for (int64_t i = rows(range).first; i < rows(range).end; i++)
        for (int64_t d = 0; d < width; d++) narrow(result[i * width + d], row<decltype(number)>(states, i) + d);
    });
  }

  template <class Number>
  Number* block(Number* states, int64_t i) const {
    return states + i * size * width;
  }

  float* log_sums(int64_t i) const {
    return call.log_sums + (place * num_blocks + i) * size;
  }

  // Calls `work(j)` for each key block that a query block sees, unless all of its keys are hidden.
  template <class Work>
  void for_each_key_block(int64_t i, Work work) const {
    for (int64_t l = 0; l < num_seen(i); l++) {
      const int64_t j = key_block(i, l);
      if (j < num_blocks && shows_any(j)) work(j);
    }
  }

  // Computes the scores of a query block, transposed and scaled [D, b], with a key block, by key: [b, b].
  void score(int64_t i, int64_t j, const float* queries, const float* keys, float* scores) {
    product<false>(size, size, width, block(keys, j), queries, scores, false);
    watch.lap(PRODUCTS);
    const float* bias = bias_of(j);
    for (int64_t y = 0; y < size; y++) {
      if (bias[y] != 0)
        for (int64_t x = 0; x < size; x += WIDTH) store(scores + y * size + x, all(LOWEST));
      if (call.causal && i == j)
        for (int64_t x = 0; x < y; x++) scores[y * size + x] = LOWEST;
    }
  }

  bool drops() const { return call.dropped_levels > 0; }

  Dropout::OfPair dropout_of(int64_t i, int64_t j) const { return dropout.of(i * num_blocks + j); }

 private:
  const int64_t sequence, head;
  float* scratch;
  const Dropout dropout;

  int64_t num_seen(int64_t i) const { return i < call.num_global_rows ? num_blocks : call.num_seen; }

  // The first query block of a segment; segments get equal amounts of work.
  int64_t start_of(int64_t segment) const {
    const int64_t global = call.num_global_rows;
    const int64_t work = global * num_blocks + (num_blocks - global) * call.num_seen;
    int64_t i = 0;
    for (int64_t before = 0; i < num_blocks && before * call.num_segments < segment * work; i++)
      before += num_seen(i);
    return i;
  }

  // The l-th key block that a query block sees; N if there is none.
  int64_t key_block(int64_t i, int64_t l) const {
    if (i < call.num_global_rows) return l;
    const int64_t row = head * (num_blocks - call.num_global_rows) + i - call.num_global_rows;
    return call.key_blocks[row * call.num_seen + l];
  }

  bool lie_ready(const States& states) const {
    return call.stored == Stored::FLOAT32 && call.length == num_blocks * size &&
           states.row == static_cast<int64_t>(sizeof(float)) * width;
  }

  template <class Number>
  Number* row(const States& states, int64_t i) const {
    const int64_t place = sequence * states.batch + head * states.head + i * states.row;
    return reinterpret_cast<Number*>(states.first + place);
  }

  Range rows(Range blocks) const { return {blocks.first * size, std::min(blocks.end * size, call.length)}; }

  // Calls `work` with a value of the type in which the states are stored.
  template <class Work>
  void as_stored(Work work) const {
    if (call.stored == Stored::FLOAT32) work(float());
    if (call.stored == Stored::BFLOAT16) work(BFloat16());
    if (call.stored == Stored::FLOAT16) work(_Float16());
  }

  const float* bias_of(int64_t j) const { return call.bias + (sequence * (num_blocks + 1) + j) * size; }

  bool shows_any(int64_t j) const {
    const float* bias = bias_of(j);
    return std::any_of(bias, bias + size, [](float each) { return each == 0; });
  }
};

// The running output of a query block. Its sums are relative to the highest score so far.
class Output {
 public:
  Output(const Head& head, float* result, float* highest, float* total, float* fading)
      : head(head), result(result), highest(highest), total(total), fading(fading) {
    std::fill_n(highest, head.size, LOWEST);
    std::fill_n(total, head.size, 0.0f);
    std::fill_n(result, head.size * head.width, 0.0f);
  }

  // Turns scores by key [b, b] into weights; scales earlier sums down if the highest score has grown.
  void weigh(float* scores) {
    const int64_t size = head.size;
    for (int64_t x = 0; x < size; x += WIDTH) {
      const Vector before = load(highest + x);
      Vector now = before, sum = {};
      for (int64_t y = 0; y < size; y++) now = larger(load(scores + y * size + x), now);
      for (int64_t y = 0; y < size; y++) {
        const Vector weights = exp2(load(scores + y * size + x) - now);
        store(scores + y * size + x, weights);
        sum += weights;
      }
      store(fading + x, exp2(before - now));
      store(highest + x, now);
      store(total + x, load(total + x) * load(fading + x) + sum);
    }
    for (int64_t x = 0; x < size; x++)
      if (fading[x] != 1) scale_row(x, fading[x]);
  }

  // Divides by the sums. A row that sees nothing becomes zero, and its sum infinite, so that its weights are zero
  // in the backward pass.
  void finish(float* log_sums) {
    for (int64_t x = 0; x < head.size; x++) {
      if (highest[x] <= LOWEST / 2) {
        std::fill_n(result + x * head.width, head.width, 0.0f);
        log_sums[x] = INFINITY;
      } else {
        scale_row(x, 1 / total[x]);
        log_sums[x] = highest[x] + std::log2(total[x]);
      }
    }
  }

 private:
  const Head& head;
  float *const result, *const highest, *const total, *const fading;

  void scale_row(int64_t x, float factor) {
    float* row = result + x * head.width;
    for (int64_t d = 0; d < head.width; d += WIDTH) store(row + d, load(row + d) * factor);
  }
};

void drop(const Dropout::OfPair& dropout, int64_t count, float* weights) {
  for (int64_t place = 0; place < count; place += WIDTH)
    store(weights + place, load(weights + place) * dropout.factors(place));
}

void attend(Head head) {
  const Call& call = head.call;
  const int64_t size = head.size, width = head.width;
  const float* query = head.read(call.query, head.own);
  const float *key = head.read(call.key, head.everything), *value = head.read(call.value, head.everything);
  float* output = head.write(call.output);
  float *queries = head.take(size * width), *weights = head.take(size * size);
  float *highest = head.take(size), *total = head.take(size), *fading = head.take(size);
  for (int64_t i = head.own.first; i < head.own.end; i++) {
    float* result = head.block(output, i);
    transpose(head.block(query, i), size, width, LOG2_E * static_cast<float>(call.scaling), queries);
    Output of_block(head, result, highest, total, fading);
    head.for_each_key_block(i, [&](int64_t j) {
      head.watch.lap(REST);
      head.score(i, j, queries, key, weights);
      of_block.weigh(weights);
      if (head.drops()) drop(head.dropout_of(i, j), size * size, weights);
      head.watch.lap(SOFTMAX);
      product<true>(size, width, size, weights, head.block(value, j), result, true);
      head.watch.lap(PRODUCTS);
    });
    of_block.finish(head.log_sums(i));
  }
  head.finish(output, call.output, head.own);
  head.watch.lap(REST);
}

// A query block of the backward pass: its scaled queries, its transposed queries and output gradient, and the sums of
// its weights times their gradients.
struct QueryBlock {
  float *scaled, *queries, *upstream, *row_sums;

  void set(const Head& head, const float* query, const float* grad, const float* output) {
    const int64_t size = head.size, width = head.width;
    const auto scaling = static_cast<float>(head.call.scaling);
    transpose(query, size, width, LOG2_E * scaling, queries);
    transpose(grad, size, width, 1, upstream);
    for (int64_t x = 0; x < size; x++) {  // these sums equal the output times its gradient (section B.2)
      Vector products = {};
      for (int64_t d = x * width; d < (x + 1) * width; d += WIDTH) {
        products += load(grad + d) * load(output + d);
        store(scaled + d, load(query + d) * scaling);
      }
      row_sums[x] = sum(products);
    }
  }
};

// Turns scores by key into weights: 2^(score - log-sum).
void weigh(const float* log_sums, int64_t size, float* scores) {
  for (int64_t y = 0; y < size; y++)
    for (int64_t x = 0; x < size; x += WIDTH) {
      float* place = scores + y * size + x;
      store(place, exp2(load(place) - load(log_sums + x)));
    }
}

// Turns gradients of weights, by key, into gradients of scores: weights * (gradients - row sums).
void differentiate_softmax(const float* weights, const float* row_sums, int64_t size, float* gradients) {
  for (int64_t y = 0; y < size; y++)
    for (int64_t x = 0; x < size; x += WIDTH) {
      const int64_t place = y * size + x;
      store(gradients + place, load(weights + place) * (load(gradients + place) - load(row_sums + x)));
    }
}

void differentiate(Head head) {
  const Call& call = head.call;
  const bool is_whole = call.num_segments == 1;
  const int64_t size = head.size, width = head.width, pairs = size * size;
  const float *query = head.read(call.query, head.own), *upstream = head.read(call.upstream, head.own);
  const float* output = head.read(call.output, head.own);
  const float *key = head.read(call.key, head.everything), *value = head.read(call.value, head.everything);
  float* grad_query = head.write(call.grad_query);
  float* grad_key = is_whole ? head.write(call.grad_key) : call.partial_gradient(head.place, head.segment, 0);
  float* grad_value = is_whole ? head.write(call.grad_value) : call.partial_gradient(head.place, head.segment, 1);
  std::fill_n(grad_key, call.head_size(), 0.0f);
  std::fill_n(grad_value, call.head_size(), 0.0f);
  const int64_t states = size * width;
  QueryBlock block = {head.take(states), head.take(states), head.take(states), head.take(size)};
  float *weights = head.take(pairs), *dropped = head.take(pairs), *gradients = head.take(pairs);
  for (int64_t i = head.own.first; i < head.own.end; i++) {
    const float* grad = head.block(upstream, i);
    float* of_query = head.block(grad_query, i);
    std::fill_n(of_query, size * width, 0.0f);
    block.set(head, head.block(query, i), grad, head.block(output, i));
    head.for_each_key_block(i, [&](int64_t j) {
      head.watch.lap(REST);
      head.score(i, j, block.queries, key, weights);
      weigh(head.log_sums(i), size, weights);
      head.watch.lap(SOFTMAX);
      product<false>(size, size, width, head.block(value, j), block.upstream, gradients, false);
      head.watch.lap(PRODUCTS);
      const float* of_values = weights;
      if (head.drops()) {
        std::copy_n(weights, pairs, dropped);
        drop(head.dropout_of(i, j), pairs, dropped);
        drop(head.dropout_of(i, j), pairs, gradients);
        of_values = dropped;
      }
      differentiate_softmax(weights, block.row_sums, size, gradients);
      head.watch.lap(SOFTMAX);
      product<false>(size, width, size, of_values, grad, head.block(grad_value, j), true);
      product<false>(size, width, size, gradients, block.scaled, head.block(grad_key, j), true);
      product<true>(size, width, size, gradients, head.block(key, j), of_query, true);
      head.watch.lap(PRODUCTS);
    });
    for (int64_t d = 0; d < size * width; d += WIDTH)
      store(of_query + d, load(of_query + d) * static_cast<float>(call.scaling));
  }
  head.finish(grad_query, call.grad_query, head.own);
  if (is_whole) {
    head.finish(grad_key, call.grad_key, head.everything);
    head.finish(grad_value, call.grad_value, head.everything);
  }
  head.watch.lap(REST);
}

// Adds the segments' gradients of a head's keys and values, always in the same order, so that runs are reproducible.
void add_up(const Call& call, int64_t place) {
  const States* results[] = {&call.grad_key, &call.grad_value};
  const Head head(call, place, 0, nullptr);
  for (int64_t which = 0; which < 2; which++) {
    float* total = call.partial_gradient(place, 0, which);
    for (int64_t segment = 1; segment < call.num_segments; segment++) {
      const float* part = call.partial_gradient(place, segment, which);
      for (int64_t d = 0; d < call.head_size(); d += WIDTH) store(total + d, load(total + d) + load(part + d));
    }
    head.finish(total, *results[which], head.everything);
  }
}

template <class Work>
void for_each_segment(const Call& call, Work work) {
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(call.num_threads))
  for (int64_t task = 0; task < call.batch * call.heads * call.num_segments; task++) {
    float* scratch = call.scratch + omp_get_thread_num() * call.num_scratch();
    work(Head(call, task / call.num_segments, task % call.num_segments, scratch));
  }
}

}  // namespace

extern "C" {

int64_t vaswani_size_of_Call() { return sizeof(Call); }

int64_t vaswani_vector_width() { return WIDTH; }

int64_t vaswani_num_scratch(const Call* call) { return call->num_scratch(); }

void vaswani_sparse_attention(const Call* call) { for_each_segment(*call, attend); }

void vaswani_sparse_attention_backward(const Call* call) {
  for_each_segment(*call, differentiate);
  if (call->num_segments == 1) return;
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(call->num_threads))
  for (int64_t place = 0; place < call->batch * call->heads; place++) add_up(*call, place);
}

}  // extern "C"
