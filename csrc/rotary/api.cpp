#include "common/types.h"
#include "rotary/rotary.h"

ENGINE_EXPORT int32_t engine_rotary_embedding(void* query, void* key, const int64_t* positions,
                                              const float* cos_sin_cache, int64_t num_tokens, int64_t num_heads,
                                              int64_t num_kv_heads, int64_t head_dim, int64_t query_stride,
                                              int64_t key_stride, int64_t max_position, int32_t dtype, int32_t level,
                                              int32_t num_threads) {
  using namespace engine;
  static constexpr void (*kKernels[])(const RotaryArgs&) = ENGINE_KERNEL_TABLE(rotary);
  if (!level_is_supported(level)) return kUnsupportedLevel;
  for (int64_t i = 0; i < num_tokens; ++i)
    if (positions[i] < 0 || positions[i] >= max_position) return kIndexOutOfRange;
  kKernels[level]({query, key, positions, cos_sin_cache, num_tokens, num_heads, num_kv_heads, head_dim, query_stride,
                   key_stride, dtype, num_threads});
  return kOk;
}
