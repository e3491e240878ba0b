// silu(gate) * up, where gate and up are the two halves of each row.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace engine {

struct SiluAndMulArgs {
  void* output;       // [num_rows, size]
  const void* input;  // [num_rows, 2 * size]
  int64_t num_rows;
  int64_t size;
  int32_t dtype;
  int32_t level;
  int32_t num_threads;
};

#define ENGINE_DECLARE(isa) ENGINE_DECLARE_KERNEL(isa, silu_and_mul, SiluAndMulArgs)
ENGINE_FOR_EACH_ISA(ENGINE_DECLARE)
#undef ENGINE_DECLARE

}  // namespace engine
