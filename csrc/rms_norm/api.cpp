#include "common/types.h"
#include "rms_norm/rms_norm.h"

ENGINE_EXPORT int32_t engine_rms_norm(const engine::RmsNormArgs* args) {
  using namespace engine;
  static constexpr void (*kKernels[])(const RmsNormArgs&) = ENGINE_KERNEL_TABLE(rms_norm);
  if (!level_is_supported(args->level)) return kUnsupportedLevel;
  kKernels[args->level](*args);
  return kOk;
}
