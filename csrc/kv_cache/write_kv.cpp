// Scatter of new keys and values into the paged cache. Copies bytes: no instruction set level helps it.
#include <cstring>

#include "common/types.h"

// key_cache, value_cache: [num_slots, row_bytes]; key, value: [num_tokens, row_bytes], rows key_stride_bytes and
// value_stride_bytes apart; slots: [num_tokens].
ENGINE_EXPORT int32_t engine_write_kv(char* key_cache, char* value_cache, const char* key, const char* value,
                                      const int64_t* slots, int64_t num_tokens, int64_t num_slots, int64_t row_bytes,
                                      int64_t key_stride_bytes, int64_t value_stride_bytes) {
  using namespace engine;
  for (int64_t i = 0; i < num_tokens; ++i)
    if (slots[i] < 0 || slots[i] >= num_slots) return kIndexOutOfRange;
  for (int64_t i = 0; i < num_tokens; ++i) {
    std::memcpy(key_cache + slots[i] * row_bytes, key + i * key_stride_bytes, row_bytes);
    std::memcpy(value_cache + slots[i] * row_bytes, value + i * value_stride_bytes, row_bytes);
  }
  return kOk;
}
