#include "activation/activation.h"
#include "common/types.h"

ENGINE_EXPORT int32_t engine_silu_and_mul(const engine::SiluAndMulArgs* args) {
  using namespace engine;
  static constexpr void (*kKernels[])(const SiluAndMulArgs&) = ENGINE_KERNEL_TABLE(silu_and_mul);
  if (!level_is_supported(args->level)) return kUnsupportedLevel;
  kKernels[args->level](*args);
  return kOk;
}
