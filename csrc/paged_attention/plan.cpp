#include <algorithm>

#include "paged_attention/paged_attention.h"

namespace engine {
namespace {

// Many rows: one item a tile of rows, over all of its keys. The last tiles have the most keys, so they go first.
void plan_tiles(AttentionPlan& plan, const PagedAttentionArgs& a, int64_t seq, int64_t kv_head) {
  const int64_t first = a.first_position(seq), num_rows = a.num_rows(seq);
  for (int64_t begin = (num_rows - 1) / kTileRows * kTileRows; begin >= 0; begin -= kTileRows) {
    const int64_t end = std::min(begin + kTileRows, num_rows);
    plan.items.push_back({int32_t(seq), int32_t(kv_head), int32_t(begin), int32_t(end),
                          int32_t(a.first_key(first + begin / a.group())),
                          int32_t(first + (end - 1) / a.group() + 1), -1});
  }
}

// Few rows (decodes, short chunks): one item a range of keys, cut at multiples of kSplitKeys.
void plan_splits(AttentionPlan& plan, const PagedAttentionArgs& a, int64_t seq, int64_t kv_head) {
  const int64_t num_rows = a.num_rows(seq), end = a.seq_lens[seq];
  const int64_t begin = a.first_key(a.first_position(seq));
  const int64_t num_splits = (end - 1) / kSplitKeys - begin / kSplitKeys + 1;
  for (int64_t s = 0, key = begin; s < num_splits; ++s) {
    const int64_t key_end = std::min((key / kSplitKeys + 1) * kSplitKeys, end);
    plan.items.push_back({int32_t(seq), int32_t(kv_head), 0, int32_t(num_rows), int32_t(key), int32_t(key_end),
                          num_splits > 1 ? plan.num_partials + s * num_rows : -1});
    key = key_end;
  }
  if (num_splits > 1) {
    plan.merges.push_back(
        {int32_t(seq), int32_t(kv_head), int32_t(num_rows), int32_t(num_splits), plan.num_partials});
    plan.num_partials += num_splits * num_rows;
  }
}

}  // namespace

AttentionPlan plan_attention(const PagedAttentionArgs& a) {
  AttentionPlan plan;
  for (const bool many_rows : {true, false}) {
    for (int64_t seq = 0; seq < a.num_seqs; ++seq) {
      if (a.num_rows(seq) == 0 || (a.num_rows(seq) > kTileRows) != many_rows) continue;
      for (int64_t h = 0; h < a.num_kv_heads; ++h)
        many_rows ? plan_tiles(plan, a, seq, h) : plan_splits(plan, a, seq, h);
    }
  }
  return plan;
}

}  // namespace engine
