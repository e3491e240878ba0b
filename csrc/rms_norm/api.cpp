#include "common/types.h"
#include "rms_norm/rms_norm.h"

// residual and sum_output are null for the plain norm.
ENGINE_EXPORT int32_t engine_rms_norm(void* output, void* sum_output, const void* input, const void* residual,
                                      const void* weight, int64_t num_rows, int64_t size, float eps, int32_t dtype,
                                      int32_t level, int32_t num_threads) {
  using namespace engine;
  static constexpr void (*kKernels[])(const RmsNormArgs&) = ENGINE_KERNEL_TABLE(rms_norm);
  if (!level_is_supported(level)) return kUnsupportedLevel;
  kKernels[level]({output, sum_output, input, residual, weight, num_rows, size, eps, dtype, num_threads});
  return kOk;
}
