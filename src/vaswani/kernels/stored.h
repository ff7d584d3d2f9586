// Copyright 2026 The vaswani authors.
// Licensed under the Apache License, Version 2.0.
//
// Numbers as tensors store them, for the C++ files beside this one; computations use float32.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }
inline float widen(_Float16 value) { return static_cast<float>(value); }
inline float widen(BFloat16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float number;
  std::memcpy(&number, &wide, 4);
  return number;
}

inline void narrow(float value, float* to) { *to = value; }
inline void narrow(float value, _Float16* to) { *to = static_cast<_Float16>(value); }
inline void narrow(float value, BFloat16* to) {  // rounds to nearest, ties to even
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  to->bits = value != value ? 0x7FC0 : static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
}

}  // namespace
