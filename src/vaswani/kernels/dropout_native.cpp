// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Dropout's random draw, and its product with states in float32 or bfloat16, on the CPU.
// `dropout.py` compiles and calls it.
//
// Each does in one pass what PyTorch's operators do in three, with the same result, bit by bit.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "stored.h"

namespace {

constexpr int64_t NUMBERS = 256;                // drawn at a time
constexpr int64_t ELEMENTS = 4 * NUMBERS;       // each number decides for four
constexpr int64_t WORTH_A_THREAD = 1 << 14;     // elements

// Chris Doty-Humphrey's small fast counting generator, as NumPy has it: three words and a counter.
struct Sfc64 {
  uint64_t words[4];

  uint64_t next() {
    const uint64_t drawn = words[0] + words[1] + words[3]++;
    words[0] = words[1] ^ (words[1] >> 11);
    words[1] = words[2] + (words[2] << 3);
    words[2] = ((words[2] << 24) | (words[2] >> 40)) + drawn;
    return drawn;
  }
};

template <typename Number>
void drop(const Number* states, const uint8_t* kept, int64_t count, float scale, int64_t num_threads, Number* outputs) {
#pragma omp parallel for simd schedule(static) num_threads(num_threads) if (count > WORTH_A_THREAD)
  for (int64_t i = 0; i < count; i++)  // 0 times what is not finite stays NaN, as by PyTorch's operators
    narrow(widen(states[i]) * static_cast<float>(kept[i]) * scale, outputs + i);
}

}  // namespace

// kept[i] = the i-th 16 bits of the generator, as a signed number, are at least `least`.
extern "C" void vaswani_draw_kept(const uint64_t* words, int64_t count, int64_t least, uint8_t* kept) {
  Sfc64 generator;
  std::memcpy(generator.words, words, sizeof generator.words);
  const int16_t lowest_kept = static_cast<int16_t>(least);
  for (int64_t start = 0; start < count; start += ELEMENTS) {
    uint64_t numbers[NUMBERS];
    int16_t levels[ELEMENTS];
    for (uint64_t& number : numbers) number = generator.next();
    std::memcpy(levels, numbers, sizeof levels);
    const int64_t size = std::min(ELEMENTS, count - start);
    for (int64_t i = 0; i < size; i++) kept[start + i] = levels[i] >= lowest_kept;
  }
}

// outputs = states * kept * scale, each rounded once.
extern "C" void vaswani_drop(const void* states, bool is_bfloat16, const uint8_t* kept, int64_t count, float scale,
                             int64_t num_threads, void* outputs) {
  if (is_bfloat16)
    drop(static_cast<const BFloat16*>(states), kept, count, scale, num_threads, static_cast<BFloat16*>(outputs));
  else
    drop(static_cast<const float*>(states), kept, count, scale, num_threads, static_cast<float*>(outputs));
}
