#include <cstdlib>
#include <cstring>
#include <memory>

#include "linear/linear.h"

namespace engine {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// The rows of the input, each followed by zeros up to a multiple of kDepth; null when out of memory.
std::unique_ptr<BFloat16, Free> padded_rows(const LinearArgs& a) {
  const int64_t depth = a.depth();
  std::unique_ptr<BFloat16, Free> rows(static_cast<BFloat16*>(std::calloc(a.num_rows * depth, sizeof(BFloat16))));
  for (int64_t i = 0; rows && i < a.num_rows; ++i)
    std::memcpy(rows.get() + i * depth, a.row(i), a.in_features * sizeof(BFloat16));
  return rows;
}

}  // namespace
}  // namespace engine

ENGINE_EXPORT int32_t engine_linear(const engine::LinearArgs* args) {
  using namespace engine;
  static constexpr void (*kKernels[])(const LinearArgs&) = ENGINE_KERNEL_TABLE(linear);
  if (!level_is_supported(args->level)) return kUnsupportedLevel;
  if (args->num_rows == 0) return kOk;
  if (args->in_features == args->depth()) {
    kKernels[args->level](*args);
    return kOk;
  }
  const std::unique_ptr<BFloat16, Free> padded = padded_rows(*args);
  if (!padded) return kOutOfMemory;
  LinearArgs with_padding = *args;
  with_padding.input = padded.get();
  with_padding.input_stride = with_padding.in_features = args->depth();
  kKernels[args->level](with_padding);
  return kOk;
}
