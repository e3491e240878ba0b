// Root-mean-square layer norm of rows, with or without the residual add before it.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace engine {

struct RmsNormArgs {
  void* output;           // [num_rows, size]
  void* sum_output;       // [num_rows, size] input + residual, or null: no residual
  const void* input;      // [num_rows, size]
  const void* residual;   // [num_rows, size], or null
  const void* weight;     // [size]
  int64_t num_rows;
  int64_t size;
  float eps;
  int32_t dtype;
  int32_t level;
  int32_t num_threads;
};

#define ENGINE_DECLARE(isa) ENGINE_DECLARE_KERNEL(isa, rms_norm, RmsNormArgs)
ENGINE_FOR_EACH_ISA(ENGINE_DECLARE)
#undef ENGINE_DECLARE

}  // namespace engine
