#include <cstdlib>
#include <cstring>
#include <memory>

#include "linear/linear.h"

namespace engine {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// The rows of x, each followed by zeros up to a multiple of kDepth; null when out of memory.
std::unique_ptr<BFloat16, Free> padded_rows(const BFloat16* x, int64_t num_rows, int64_t size, int64_t stride,
                                            int64_t depth) {
  std::unique_ptr<BFloat16, Free> rows(static_cast<BFloat16*>(std::calloc(num_rows * depth, sizeof(BFloat16))));
  for (int64_t i = 0; rows && i < num_rows; ++i)
    std::memcpy(rows.get() + i * depth, x + i * stride, size * sizeof(BFloat16));
  return rows;
}

}  // namespace
}  // namespace engine

ENGINE_EXPORT int32_t engine_linear(void* output, const void* input, const void* weight, const void* bias,
                                    int64_t num_rows, int64_t out_features, int64_t in_features, int64_t input_stride,
                                    int32_t level, int32_t num_threads) {
  using namespace engine;
  static constexpr void (*kKernels[])(const LinearArgs&) = ENGINE_KERNEL_TABLE(linear);
  if (!level_is_supported(level)) return kUnsupportedLevel;
  const int64_t depth = (in_features + kDepth - 1) / kDepth * kDepth;
  const auto* x = static_cast<const BFloat16*>(input);
  std::unique_ptr<BFloat16, Free> padded;
  if (depth != in_features) {
    padded = padded_rows(x, num_rows, in_features, input_stride, depth);
    if (!padded) return kOutOfMemory;
    x = padded.get();
    input_stride = depth;
  }
  kKernels[level]({static_cast<BFloat16*>(output), x, static_cast<const BFloat16*>(weight),
                   static_cast<const BFloat16*>(bias), num_rows, out_features, depth, input_stride, num_threads});
  return kOk;
}
