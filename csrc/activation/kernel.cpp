#include <type_traits>

#include "activation/activation.h"
#include "common/simd.h"

namespace engine::ENGINE_ISA {
namespace {

// Rounds silu before the product, as two separate torch operations do.
template <class T>
ENGINE_INLINE Vec silu_times(Vec gate, Vec up) {
  return round_to<T>(gate / (1.0f + exp(-gate))) * up;
}

template <class T>
void run(const SiluAndMulArgs& a) {
  constexpr int64_t kSerialElements = 8192;  // below this, waking threads costs more than it saves
#pragma omp parallel for schedule(static) num_threads(a.num_threads) if (a.num_rows * a.size > kSerialElements)
  for (int64_t row = 0; row < a.num_rows; ++row) {
    const T* gate = static_cast<const T*>(a.input) + row * 2 * a.size;
    const T* up = gate + a.size;
    T* output = static_cast<T*>(a.output) + row * a.size;
    int64_t i = 0;
    for (; i + kWidth <= a.size; i += kWidth) store(output + i, silu_times<T>(load(gate + i), load(up + i)));
    if (const int64_t n = a.size - i; n > 0)
      store_partial(output + i, silu_times<T>(load_partial(gate + i, n), load_partial(up + i, n)), n);
  }
}

}  // namespace

void silu_and_mul(const SiluAndMulArgs& args) {
  with_element_type(args.dtype, [&](auto* type) { run<std::remove_pointer_t<decltype(type)>>(args); });
}

}  // namespace engine::ENGINE_ISA
