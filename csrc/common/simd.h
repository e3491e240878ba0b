// A float vector of the level's width, and conversions between it and the three element types.
//
// Arithmetic is the compiler's own vector extension (GCC, Clang), so a kernel is written once; only
// conversions name instructions. Everything lives in the level's namespace: two levels must not share
// an inline function, or the linker could keep the copy that the machine cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine::ENGINE_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

#define ENGINE_INLINE inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IVec __attribute__((vector_size(kWidth * 4)));
typedef uint32_t UVec __attribute__((vector_size(kWidth * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kWidth * 2)));

template <class V>
ENGINE_INLINE V load_bits(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

ENGINE_INLINE Vec broadcast(float x) { return x - Vec{}; }
ENGINE_INLINE IVec broadcast(int32_t x) { return x - IVec{}; }
ENGINE_INLINE UVec broadcast(uint32_t x) { return x - UVec{}; }
ENGINE_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
ENGINE_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

ENGINE_INLINE float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < kWidth; ++i) total += v[i];
  return total;
}

// ---- element types -------------------------------------------------------------------------------

// GCC 12 turns the generic conversion into five instructions.
ENGINE_INLINE UVec widen(HalfVec h) {
#if defined(__AVX512F__)
  return (UVec)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
  return (UVec)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, UVec);
#endif
}

ENGINE_INLINE Vec load(const float* p) { return load_bits<Vec>(p); }

ENGINE_INLINE Vec load(const BFloat16* p) { return (Vec)(widen(load_bits<HalfVec>(p)) << 16); }

ENGINE_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

// Round to nearest, ties to even; a NaN stays one.
ENGINE_INLINE UVec bfloat16_bits(Vec v) {
#if defined(__AVX512BF16__)
  return (UVec)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v));
#else
  UVec bits = (UVec)v;
  UVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return v == v ? rounded : broadcast(uint32_t{0x7fc0});
#endif
}

ENGINE_INLINE void store(BFloat16* p, Vec v) {
#if defined(__AVX512BF16__)
  __m256bh h = _mm512_cvtneps_pbh(v);
#else
  HalfVec h = __builtin_convertvector(bfloat16_bits(v), HalfVec);
#endif
  std::memcpy(p, &h, sizeof(h));
}

#if defined(__AVX512F__)
ENGINE_INLINE Vec load(const Float16* p) { return _mm512_cvtph_ps(load_bits<__m256i>(p)); }
ENGINE_INLINE void store(Float16* p, Vec v) {
  __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof(h));
}
#elif defined(__F16C__)
ENGINE_INLINE Vec load(const Float16* p) { return _mm256_cvtph_ps(load_bits<__m128i>(p)); }
ENGINE_INLINE void store(Float16* p, Vec v) {
  __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &h, sizeof(h));
}
#else
// Moves the exponent and the fraction to their places and lets a multiplication correct the exponent's
// bias; that also makes subnormals right.
ENGINE_INLINE Vec load(const Float16* p) {
  UVec h = widen(load_bits<HalfVec>(p));
  UVec sign = (h & 0x8000) << 16;
  UVec magnitude = (h & 0x7fff) << 13;
  Vec value = (Vec)magnitude * broadcast(0x1p112f);
  UVec special = magnitude | 0x7f800000;  // infinity or NaN
  return (Vec)(((h & 0x7c00) == 0x7c00 ? special : (UVec)value) | sign);
}

ENGINE_INLINE uint16_t to_float16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {                       // subnormal: let the addition round
    float small;
    std::memcpy(&small, &magnitude, sizeof(small));
    small += 0.5f;
    std::memcpy(&bits, &small, sizeof(bits));
    return sign | (bits - 0x3f000000);
  }
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

ENGINE_INLINE void store(Float16* p, Vec v) {
  for (int i = 0; i < kWidth; ++i) p[i].bits = to_float16(v[i]);
}
#endif

// The first n < kWidth elements; the others are zero.
template <class T>
ENGINE_INLINE Vec load_partial(const T* p, int64_t n) {
  T buffer[kWidth] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}

template <class T>
ENGINE_INLINE void store_partial(T* p, Vec v, int64_t n) {
  T buffer[kWidth];
  store(buffer, v);
  std::memcpy(p, buffer, n * sizeof(T));
}

// What v is after being stored as T and loaded again.
template <class T>
ENGINE_INLINE Vec round_to(Vec v) {
  T buffer[kWidth];
  store(buffer, v);
  return load(buffer);
}
template <>
ENGINE_INLINE Vec round_to<float>(Vec v) {
  return v;
}
template <>
ENGINE_INLINE Vec round_to<BFloat16>(Vec v) {
  return (Vec)(bfloat16_bits(v) << 16);
}

// ---- functions -----------------------------------------------------------------------------------

// e^x within 2 ulp; 0 below -87.3 (so that e^-inf is 0), clamped above 88.
ENGINE_INLINE Vec exp(Vec x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Vec clamped = min(max(x, broadcast(-87.3f)), broadcast(88.0f));
  Vec shifted = clamped * kLog2E + kRound;
  Vec n = shifted - kRound;
  Vec r = clamped - n * kLn2High - n * kLn2Low;
  Vec p = broadcast(1.9875691500e-4f);  // Cephes expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  IVec exponent = ((IVec)shifted) << 23;  // the low bits of `shifted` are n; the rest is shifted out
  Vec result = (Vec)((IVec)p + exponent);
  return x < -87.3f ? Vec{} : result;
}

}  // namespace engine::ENGINE_ISA
