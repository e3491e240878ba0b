#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "paged_attention/paged_attention.h"

namespace engine {
namespace {

// Every position and every block that the batch leads to exists.
bool batch_is_valid(const PagedAttentionArgs& a) {
  if (a.query_start_loc[0] != 0 || a.query_start_loc[a.num_seqs] != a.num_tokens) return false;
  for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
    if (a.query_len(seq) < 0 || a.first_position(seq) < 0) return false;
    if (a.query_len(seq) == 0) continue;
    const int64_t end = (a.seq_lens[seq] + a.block_size - 1) / a.block_size;
    if (end > a.max_blocks) return false;
    const int32_t* blocks = a.block_table + seq * a.table_stride;
    for (int64_t i = a.first_key(a.first_position(seq)) / a.block_size; i < end; ++i)
      if (blocks[i] < 0 || blocks[i] >= a.num_blocks) return false;
  }
  return true;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

void run(const PagedAttentionArgs& args) {
  static constexpr void (*kKernels[])(const AttentionWork&) = ENGINE_KERNEL_TABLE(paged_attention);
  const AttentionPlan plan = plan_attention(args);
  const int64_t size = std::max<int64_t>(1, plan.num_partials * (args.head_dim + 2));
  const std::unique_ptr<float, Free> partials(static_cast<float*>(std::malloc(size * sizeof(float))));
  if (!partials) throw std::bad_alloc();
  kKernels[args.level]({args, plan, partials.get()});
}

}  // namespace
}  // namespace engine

ENGINE_EXPORT int32_t engine_paged_attention(const engine::PagedAttentionArgs* args) {
  using namespace engine;
  if (!level_is_supported(args->level)) return kUnsupportedLevel;
  if (!batch_is_valid(*args)) return kIndexOutOfRange;
  try {
    run(*args);
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
  return kOk;
}
