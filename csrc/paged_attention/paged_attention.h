// Ragged causal attention over a paged KV cache, with grouped queries and an optional sliding window.
//
// A sequence's query heads that share a KV head are folded with its query tokens into rows: row r of
// (sequence, KV head) is query token r / group, query head kv_head * group + r % group. The work is cut
// into items, a tile of rows times a range of keys; the cut depends on nothing but the sequence itself,
// so a sequence's result does not depend on its batch or on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "common/isa.h"
#include "common/types.h"

namespace engine {

constexpr int64_t kTileRows = 96;   // rows of an item
constexpr int64_t kTileKeys = 64;   // keys that are scored at once
constexpr int64_t kSplitKeys = 512; // keys of an item, when a sequence's rows fit one tile; a multiple of kTileKeys
constexpr int64_t kMaxHeadDim = 256;

struct PagedAttentionArgs {
  void* output;                    // [num_tokens, num_heads, head_dim]
  const void* query;               // [num_tokens, num_heads, head_dim], tokens query_stride elements apart
  const void* key_cache;           // [num_blocks, block_size, num_kv_heads, head_dim]
  const void* value_cache;         // [num_blocks, block_size, num_kv_heads, head_dim]
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs]
  const int32_t* block_table;      // [num_seqs, max_blocks], rows table_stride elements apart
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_blocks;
  int64_t block_size;
  int64_t query_stride;
  int64_t table_stride;
  int64_t max_blocks;
  int64_t window;  // newest tokens a query sees, itself included
  float scale;
  int32_t dtype;
  int32_t level;
  int32_t num_threads;

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t query_len(int64_t seq) const { return query_start_loc[seq + 1] - query_start_loc[seq]; }
  int64_t num_rows(int64_t seq) const { return query_len(seq) * group(); }
  // Position of a sequence's first query token.
  int64_t first_position(int64_t seq) const { return seq_lens[seq] - query_len(seq); }
  // The first key that a query at `position` sees.
  int64_t first_key(int64_t position) const { return position < window ? 0 : position - window + 1; }
};

// One unit of work. Its output goes to the result, or, when the keys are split, to partial `partial`.
struct AttentionItem {
  int32_t seq;
  int32_t kv_head;
  int32_t row_begin, row_end;
  int32_t key_begin, key_end;
  int64_t partial;  // first of the item's rows in the buffer of partials, or -1
};

// The items whose partials together are the rows of one sequence and KV head.
struct AttentionMerge {
  int32_t seq;
  int32_t kv_head;
  int32_t num_rows;
  int32_t num_splits;
  int64_t partial;  // split s has rows partial + s * num_rows ...
};

struct AttentionPlan {
  std::vector<AttentionItem> items;  // the long ones first
  std::vector<AttentionMerge> merges;
  int64_t num_partials = 0;
};

AttentionPlan plan_attention(const PagedAttentionArgs& args);

// What a kernel gets: the call, and how its work is cut.
struct AttentionWork {
  const PagedAttentionArgs& args;
  const AttentionPlan& plan;
  float* partials;  // [plan.num_partials, head_dim + 2]: weighted values, maximum, sum of weights

  float* partial(int64_t index) const { return partials + index * (args.head_dim + 2); }
};

#define ENGINE_DECLARE(isa) ENGINE_DECLARE_KERNEL(isa, paged_attention, AttentionWork)
ENGINE_FOR_EACH_ISA(ENGINE_DECLARE)
#undef ENGINE_DECLARE

}  // namespace engine
