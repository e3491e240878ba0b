#include <algorithm>
#include <cstdlib>
#include <memory>

#include "paged_attention/paged_attention.h"

namespace engine {
namespace {

// Every position and every block that the batch leads to exists.
bool batch_is_valid(const AttentionBatch& b, int64_t block_size, int64_t num_blocks, int64_t window) {
  if (b.query_start_loc[0] != 0 || b.query_start_loc[b.num_seqs] != b.num_tokens) return false;
  for (int64_t seq = 0; seq < b.num_seqs; ++seq) {
    if (b.query_len(seq) < 0 || b.first_position(seq) < 0) return false;
    if (b.query_len(seq) == 0) continue;
    const int64_t end = (b.seq_lens[seq] + block_size - 1) / block_size;
    if (end > b.max_blocks) return false;
    const int32_t* blocks = b.block_table + seq * b.table_stride;
    for (int64_t i = std::max<int64_t>(0, b.first_position(seq) - window + 1) / block_size; i < end; ++i)
      if (blocks[i] < 0 || blocks[i] >= num_blocks) return false;
  }
  return true;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace
}  // namespace engine

// window <= 0: none. The layouts are those of PagedAttentionArgs.
ENGINE_EXPORT int32_t engine_paged_attention(
    void* output, const void* query, const void* key_cache, const void* value_cache, const int32_t* query_start_loc,
    const int32_t* seq_lens, const int32_t* block_table, int64_t num_tokens, int64_t num_seqs, int64_t num_heads,
    int64_t num_kv_heads, int64_t head_dim, int64_t num_blocks, int64_t block_size, int64_t query_stride,
    int64_t table_stride, int64_t max_blocks, int64_t window, float scale, int32_t dtype, int32_t level,
    int32_t num_threads) {
  using namespace engine;
  static constexpr void (*kKernels[])(const PagedAttentionArgs&) = ENGINE_KERNEL_TABLE(paged_attention);
  if (!level_is_supported(level)) return kUnsupportedLevel;
  if (window <= 0) window = INT32_MAX;
  const AttentionBatch batch{query_start_loc, seq_lens, block_table, num_seqs, table_stride, max_blocks, num_tokens};
  if (!batch_is_valid(batch, block_size, num_blocks, window)) return kIndexOutOfRange;
  const AttentionPlan plan = plan_attention(batch, num_kv_heads, num_heads / num_kv_heads, window);
  std::unique_ptr<float, Free> partials(
      static_cast<float*>(std::malloc(std::max<int64_t>(1, plan.num_partials) * (head_dim + 2) * sizeof(float))));
  if (!partials) return kOutOfMemory;
  kKernels[level]({output, query, key_cache, value_cache, &batch, &plan, partials.get(), num_heads, num_kv_heads,
                   head_dim, block_size, query_stride, window, scale, dtype, num_threads});
  return kOk;
}
