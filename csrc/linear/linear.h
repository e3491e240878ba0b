// y = x @ weight.T + bias in bfloat16 with float32 accumulation, the weight in panels of 16 features.
//
// Whatever the number of rows, each output is one sum in order of k: a row's result does not depend on
// the other rows of the batch.
#pragma once

#include <cstdint>

#include "common/isa.h"
#include "common/types.h"

namespace engine {

constexpr int64_t kPanel = 16;  // features of a panel
constexpr int64_t kDepth = 32;  // in_features are padded with zeros to a multiple of this

struct LinearArgs {
  BFloat16* output;        // [num_rows, out_features]
  const BFloat16* input;   // [num_rows, in_features], rows input_stride elements apart
  const BFloat16* weight;  // [ceil(out_features / 16), depth / 2, 16, 2]
  const BFloat16* bias;    // [out_features], or null
  int64_t num_rows;
  int64_t out_features;
  int64_t in_features;  // kernels see a multiple of kDepth; the entry point pads the input
  int64_t input_stride;
  int32_t level;
  int32_t num_threads;

  int64_t depth() const { return (in_features + kDepth - 1) / kDepth * kDepth; }
  const BFloat16* panel(int64_t index) const { return weight + index * kPanel * in_features; }
  const BFloat16* row(int64_t index) const { return input + index * input_stride; }
};

#define ENGINE_DECLARE(isa) ENGINE_DECLARE_KERNEL(isa, linear, LinearArgs)
ENGINE_FOR_EACH_ISA(ENGINE_DECLARE)
#undef ENGINE_DECLARE

}  // namespace engine
