// Where the rows of an item come from, what they see and where their results go.
#pragma once

#include <algorithm>

#include "common/simd.h"
#include "paged_attention/paged_attention.h"

namespace engine::ENGINE_ISA {

// The rows of one item. T is the element type of queries, cache and output.
template <class T>
class ItemRows {
 public:
  ItemRows(const AttentionWork& work, const AttentionItem& item)
      : work_(work),
        a_(work.args),
        item_(item),
        first_token_(a_.query_start_loc[item.seq]),
        first_position_(a_.first_position(item.seq)) {}

  int64_t count() const { return item_.row_end - item_.row_begin; }

  // Position of row r (counted from the item's first) in its sequence: the last key it sees.
  int64_t position(int64_t r) const { return first_position_ + (item_.row_begin + r) / a_.group(); }

  const T* query(int64_t r) const {
    return static_cast<const T*>(a_.query) + token(r) * a_.query_stride + head(r) * a_.head_dim;
  }

  // Stores row r: `values` [head_dim] are sums weighted by exp(score - maximum), `weight` is the sum of those.
  void finish(int64_t r, const float* values, float maximum, float weight) const {
    if (item_.partial >= 0) {
      float* partial = work_.partial(item_.partial + r);
      std::copy(values, values + a_.head_dim, partial);
      partial[a_.head_dim] = maximum;
      partial[a_.head_dim + 1] = weight;
      return;
    }
    T* out = static_cast<T*>(a_.output) + (token(r) * a_.num_heads + head(r)) * a_.head_dim;
    const float factor = 1.0f / weight;
    int64_t d = 0;
    for (; d + kWidth <= a_.head_dim; d += kWidth) store(out + d, load(values + d) * factor);
    if (d < a_.head_dim) store_partial(out + d, load_partial(values + d, a_.head_dim - d) * factor, a_.head_dim - d);
  }

 private:
  int64_t token(int64_t r) const { return first_token_ + (item_.row_begin + r) / a_.group(); }
  int64_t head(int64_t r) const { return item_.kv_head * a_.group() + (item_.row_begin + r) % a_.group(); }

  const AttentionWork& work_;
  const PagedAttentionArgs& a_;
  const AttentionItem& item_;
  int64_t first_token_;
  int64_t first_position_;
};

// Finds the keys and values of one sequence and KV head.
template <class T>
class PagedKeys {
 public:
  PagedKeys(const PagedAttentionArgs& args, const AttentionItem& item)
      : keys_(static_cast<const T*>(args.key_cache) + item.kv_head * args.head_dim),
        values_(static_cast<const T*>(args.value_cache) + item.kv_head * args.head_dim),
        blocks_(args.block_table + item.seq * args.table_stride),
        block_size_(args.block_size),
        slot_stride_(args.num_kv_heads * args.head_dim) {}

  // Offsets, in elements, of `count` tokens from `position` on.
  void locate(int64_t position, int64_t count, int64_t* offsets) const {
    int64_t block = position / block_size_, slot = position % block_size_;
    for (int64_t i = 0; i < count; ++block, slot = 0) {
      const int64_t n = std::min(block_size_ - slot, count - i);
      int64_t offset = (blocks_[block] * block_size_ + slot) * slot_stride_;
      for (const int64_t end = i + n; i < end; ++i, offset += slot_stride_) offsets[i] = offset;
    }
  }
  const T* key(int64_t offset) const { return keys_ + offset; }
  const T* value(int64_t offset) const { return values_ + offset; }

 private:
  const T* keys_;
  const T* values_;
  const int32_t* blocks_;
  int64_t block_size_;
  int64_t slot_stride_;
};

}  // namespace engine::ENGINE_ISA
