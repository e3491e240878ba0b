#include "common/isa.h"

#include "common/types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace engine {
namespace {

#if defined(__x86_64__)
// AMX needs the processor, and the kernel's leave to use the tile registers (Linux 5.16).
bool amx_is_usable() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return 0;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return 1;
  if (!__builtin_cpu_supports("avx512bf16")) return 2;
  return amx_is_usable() ? 4 : 3;
}
#else
int detect() { return 0; }
#endif

}  // namespace

int best_isa_level() {
  static const int level = detect();
  return level;
}

}  // namespace engine

ENGINE_EXPORT int32_t engine_best_isa_level() { return engine::best_isa_level(); }

ENGINE_EXPORT int32_t engine_interface_version() { return engine::kInterfaceVersion; }
