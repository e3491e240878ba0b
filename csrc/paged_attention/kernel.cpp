#include <type_traits>

#include "paged_attention/few_rows.h"
#include "paged_attention/many_rows.h"

namespace engine::ENGINE_ISA {
namespace {

template <class T>
void run_item(const AttentionWork& work, const AttentionItem& item) {
  const bool few = item.row_end - item.row_begin <= kFewRows;
  if (few && work.args.head_dim == 64) {
    FewRows<T, 64>(work, item).run();
  } else if (few && work.args.head_dim == 128) {
    FewRows<T, 128>(work, item).run();
  } else {
    ManyRows<T>(work, item).run();
  }
}

// Adds up the splits of one sequence and KV head (flash decoding).
template <class T>
void run_merge(const AttentionWork& work, const AttentionMerge& merge) {
  const int64_t head_dim = work.args.head_dim;
  const AttentionItem whole{merge.seq, merge.kv_head, 0, merge.num_rows, 0, 0, -1};
  const ItemRows<T> rows(work, whole);
  alignas(64) float values[kMaxHeadDim];
  for (int64_t r = 0; r < merge.num_rows; ++r) {
    const auto split = [&](int64_t s) { return work.partial(merge.partial + s * merge.num_rows + r); };
    float maximum = -__builtin_inff(), weight = 0;
    for (int64_t s = 0; s < merge.num_splits; ++s) maximum = std::max(maximum, split(s)[head_dim]);
    std::fill(values, values + head_dim, 0.0f);
    for (int64_t s = 0; s < merge.num_splits; ++s) {
      const float* partial = split(s);
      const float factor = exp(broadcast(partial[head_dim] - maximum))[0];
      for (int64_t d = 0; d < head_dim; ++d) values[d] += partial[d] * factor;
      weight += partial[head_dim + 1] * factor;
    }
    rows.finish(r, values, maximum, weight);
  }
}

template <class T>
void run(const AttentionWork& work) {
  const auto& items = work.plan.items;
  const auto& merges = work.plan.merges;
  const int64_t num_items = items.size(), num_merges = merges.size();
#pragma omp parallel num_threads(work.args.num_threads) if (num_items > 1)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_items; ++i) run_item<T>(work, items[i]);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_merges; ++i) run_merge<T>(work, merges[i]);
  }
}

}  // namespace

void paged_attention(const AttentionWork& work) {
  with_element_type(work.args.dtype, [&](auto* type) { run<std::remove_pointer_t<decltype(type)>>(work); });
}

}  // namespace engine::ENGINE_ISA
