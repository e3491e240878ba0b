// Rotary position embedding ("neox" pairs: first half with second half) of queries and keys, in place.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace engine {

struct RotaryArgs {
  void* query;                 // [num_tokens, num_heads, head_dim], rows query_stride elements apart
  void* key;                   // [num_tokens, num_kv_heads, head_dim], rows key_stride elements apart
  const int64_t* positions;    // [num_tokens]
  const float* cos_sin_cache;  // [max_position, head_dim]: cosines, then sines
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t query_stride;
  int64_t key_stride;
  int64_t max_position;
  int32_t dtype;
  int32_t level;
  int32_t num_threads;
};

#define ENGINE_DECLARE(isa) ENGINE_DECLARE_KERNEL(isa, rotary, RotaryArgs)
ENGINE_FOR_EACH_ISA(ENGINE_DECLARE)
#undef ENGINE_DECLARE

}  // namespace engine
