#include "activation/activation.h"
#include "common/types.h"

ENGINE_EXPORT int32_t engine_silu_and_mul(void* output, const void* input, int64_t num_rows, int64_t size,
                                          int32_t dtype, int32_t level, int32_t num_threads) {
  using namespace engine;
  static constexpr void (*kKernels[])(const SiluAndMulArgs&) = ENGINE_KERNEL_TABLE(silu_and_mul);
  if (!level_is_supported(level)) return kUnsupportedLevel;
  kKernels[level]({output, input, num_rows, size, dtype, num_threads});
  return kOk;
}
