#include <type_traits>

#include "common/simd.h"
#include "rotary/rotary.h"

namespace engine::ENGINE_ISA {
namespace {

template <class T>
ENGINE_INLINE void rotate_head(T* head, const float* cosines, const float* sines, int64_t half) {
  int64_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const Vec first = load(head + i), second = load(head + half + i);
    const Vec c = load(cosines + i), s = load(sines + i);
    store(head + i, first * c - second * s);
    store(head + half + i, second * c + first * s);
  }
  if (const int64_t n = half - i; n > 0) {
    const Vec first = load_partial(head + i, n), second = load_partial(head + half + i, n);
    const Vec c = load_partial(cosines + i, n), s = load_partial(sines + i, n);
    store_partial(head + i, first * c - second * s, n);
    store_partial(head + half + i, second * c + first * s, n);
  }
}

template <class T>
void run(const RotaryArgs& a) {
  constexpr int64_t kSerialElements = 16384;  // below this, waking threads costs more than it saves
  const int64_t half = a.head_dim / 2;
  const int64_t elements = a.num_tokens * (a.num_heads + a.num_kv_heads) * a.head_dim;
#pragma omp parallel for schedule(static) num_threads(a.num_threads) if (elements > kSerialElements)
  for (int64_t token = 0; token < a.num_tokens; ++token) {
    const float* cosines = a.cos_sin_cache + a.positions[token] * a.head_dim;
    T* query = static_cast<T*>(a.query) + token * a.query_stride;
    T* key = static_cast<T*>(a.key) + token * a.key_stride;
    for (int64_t h = 0; h < a.num_heads; ++h) rotate_head(query + h * a.head_dim, cosines, cosines + half, half);
    for (int64_t h = 0; h < a.num_kv_heads; ++h) rotate_head(key + h * a.head_dim, cosines, cosines + half, half);
  }
}

}  // namespace

void rotary(const RotaryArgs& args) {
  with_element_type(args.dtype, [&](auto* type) { run<std::remove_pointer_t<decltype(type)>>(args); });
}

}  // namespace engine::ENGINE_ISA
