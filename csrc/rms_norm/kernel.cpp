#include "rms_norm/rms_norm.h"

#include <cmath>
#include <type_traits>

#include "common/simd.h"

namespace engine::ENGINE_ISA {
namespace {

// Reads row `input` (+ `residual`, written to `sum_output`), returns its sum of squares.
template <class T>
ENGINE_INLINE float add_and_square(const T* input, const T* residual, T* sum_output, int64_t size) {
  Vec squares = {};
  const auto one = [&](Vec x, Vec r, int64_t i, int64_t n) {
    if (residual != nullptr) {
      x = round_to<T>(x + r);
      n == kWidth ? store(sum_output + i, x) : store_partial(sum_output + i, x, n);
    }
    squares += x * x;
  };
  int64_t i = 0;
  for (; i + kWidth <= size; i += kWidth)
    one(load(input + i), residual != nullptr ? load(residual + i) : Vec{}, i, kWidth);
  if (const int64_t n = size - i; n > 0)
    one(load_partial(input + i, n), residual != nullptr ? load_partial(residual + i, n) : Vec{}, i, n);
  return sum(squares);
}

// Rounds the normalised value before the weight, as Hugging Face's Llama does.
template <class T>
ENGINE_INLINE void scale_row(const T* x, const T* weight, T* output, float factor, int64_t size) {
  int64_t i = 0;
  for (; i + kWidth <= size; i += kWidth)
    store(output + i, round_to<T>(load(x + i) * factor) * load(weight + i));
  if (const int64_t n = size - i; n > 0)
    store_partial(output + i, round_to<T>(load_partial(x + i, n) * factor) * load_partial(weight + i, n), n);
}

template <class T>
void run(const RmsNormArgs& a) {
  constexpr int64_t kSerialElements = 16384;  // below this, waking threads costs more than it saves
#pragma omp parallel for schedule(static) num_threads(a.num_threads) if (a.num_rows * a.size > kSerialElements)
  for (int64_t row = 0; row < a.num_rows; ++row) {
    const int64_t offset = row * a.size;
    const T* input = static_cast<const T*>(a.input) + offset;
    const T* residual = a.residual != nullptr ? static_cast<const T*>(a.residual) + offset : nullptr;
    T* sum_output = a.residual != nullptr ? static_cast<T*>(a.sum_output) + offset : nullptr;
    const float square_sum = add_and_square(input, residual, sum_output, a.size);
    const float factor = 1.0f / std::sqrt(square_sum / static_cast<float>(a.size) + a.eps);
    const T* x = residual != nullptr ? sum_output : input;
    scale_row(x, static_cast<const T*>(a.weight), static_cast<T*>(a.output) + offset, factor, a.size);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  with_element_type(args.dtype, [&](auto* type) { run<std::remove_pointer_t<decltype(type)>>(args); });
}

}  // namespace engine::ENGINE_ISA
