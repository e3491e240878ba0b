// The instruction set levels that every kernel is compiled for, and which of them this machine can run.
//
// One source file a kernel is compiled once a level, in a namespace of the level's name (ENGINE_ISA).
// A higher level includes the ones below it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#define ENGINE_FOR_EACH_ISA(F) F(portable) F(avx2) F(avx512) F(avx512_bf16) F(amx)
#else
#define ENGINE_FOR_EACH_ISA(F) F(portable)
#endif

// Declares `void name(const args&)` once a level; ENGINE_KERNEL_TABLE lists them, indexed by level.
#define ENGINE_DECLARE_KERNEL(isa, name, args) \
  namespace isa {                              \
  void name(const args&);                      \
  }
#if defined(__x86_64__)
#define ENGINE_KERNEL_TABLE(name) \
  { &portable::name, &avx2::name, &avx512::name, &avx512_bf16::name, &amx::name }
#else
#define ENGINE_KERNEL_TABLE(name) \
  { &portable::name }
#endif

namespace engine {

// The highest level that the processor and the operating system support.
int best_isa_level();

inline bool level_is_supported(int32_t level) { return level >= 0 && level <= best_isa_level(); }

}  // namespace engine
