#include "common/types.h"
#include "rotary/rotary.h"

ENGINE_EXPORT int32_t engine_rotary_embedding(const engine::RotaryArgs* args) {
  using namespace engine;
  static constexpr void (*kKernels[])(const RotaryArgs&) = ENGINE_KERNEL_TABLE(rotary);
  if (!level_is_supported(args->level)) return kUnsupportedLevel;
  for (int64_t i = 0; i < args->num_tokens; ++i)
    if (args->positions[i] < 0 || args->positions[i] >= args->max_position) return kIndexOutOfRange;
  kKernels[args->level](*args);
  return kOk;
}
