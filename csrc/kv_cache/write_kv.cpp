// Scatter of new keys and values into the paged cache. Copies bytes: no instruction set level helps it.
#include <cstring>

#include "common/types.h"

namespace engine {

struct WriteKvArgs {
  char* key_cache;       // [num_slots, row_bytes]
  char* value_cache;     // [num_slots, row_bytes]
  const char* key;       // [num_tokens, row_bytes], rows key_stride_bytes apart
  const char* value;     // [num_tokens, row_bytes], rows value_stride_bytes apart
  const int64_t* slots;  // [num_tokens]
  int64_t num_tokens;
  int64_t num_slots;
  int64_t row_bytes;
  int64_t key_stride_bytes;
  int64_t value_stride_bytes;
};

}  // namespace engine

ENGINE_EXPORT int32_t engine_write_kv(const engine::WriteKvArgs* args) {
  using namespace engine;
  const WriteKvArgs& a = *args;
  for (int64_t i = 0; i < a.num_tokens; ++i)
    if (a.slots[i] < 0 || a.slots[i] >= a.num_slots) return kIndexOutOfRange;
  for (int64_t i = 0; i < a.num_tokens; ++i) {
    std::memcpy(a.key_cache + a.slots[i] * a.row_bytes, a.key + i * a.key_stride_bytes, a.row_bytes);
    std::memcpy(a.value_cache + a.slots[i] * a.row_bytes, a.value + i * a.value_stride_bytes, a.row_bytes);
  }
  return kOk;
}
