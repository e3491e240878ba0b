// Items of few rows (decodes): bound by reading keys and values, so each is read once and used by all rows.
//
// Vectors run along head_dim. kHeadDim is a constant so that a row of it stays in registers.
#pragma once

#include "paged_attention/rows.h"

namespace engine::ENGINE_ISA {

constexpr int64_t kFewRows = 8;

// Folds kWidth vectors into one: lane i of the result is the sum of vector i. A butterfly of log2(kWidth) levels.
ENGINE_INLINE Vec sums_of(Vec (&v)[kWidth]) {
#pragma GCC unroll 4
  for (int step = 1; step < kWidth; step *= 2) {
    IVec stay, swap;
    for (int lane = 0; lane < kWidth; ++lane) {
      const int source = (lane & step) != 0 ? kWidth : 0;
      stay[lane] = source + lane;
      swap[lane] = source + (lane ^ step);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; i += 2 * step)
      v[i] = __builtin_shuffle(v[i], v[i + step], stay) + __builtin_shuffle(v[i], v[i + step], swap);
  }
  return v[0];
}

template <class T, int kHeadDim>
class FewRows {
 public:
  FewRows(const AttentionWork& work, const AttentionItem& item)
      : a_(work.args), item_(item), rows_(work, item), paged_(work.args, item) {}

  void run() {
    start();
    int64_t offsets[2][kTileKeys];
    int64_t count = locate(item_.key_begin, offsets[0]);
    for (int64_t key = item_.key_begin; count > 0;) {
      const int64_t next = locate(key + count, offsets[1]);
      attend(key, count, offsets[0], offsets[next > 0 ? 1 : 0]);
      if (next > 0) std::copy(offsets[1], offsets[1] + kTileKeys, offsets[0]);
      key += count;
      count = next;
    }
    for (int64_t r = 0; r < rows_.count(); ++r) rows_.finish(r, values_[r], maxima_[r], weights_[r]);
  }

 private:
  static constexpr int kVecs = kHeadDim / kWidth;
  static constexpr int kRowRun = 4;  // rows that share one pass over the keys

  void start() {
    for (int64_t r = 0; r < rows_.count(); ++r) {
      for (int v = 0; v < kVecs; ++v) store(queries_[r] + v * kWidth, load(rows_.query(r) + v * kWidth) * a_.scale);
      std::fill(values_[r], values_[r] + kHeadDim, 0.0f);
      maxima_[r] = -__builtin_inff();
      weights_[r] = 0;
    }
  }

  // Where the keys from `key` on are; returns how many there are, up to a tile. The others repeat the last.
  int64_t locate(int64_t key, int64_t* offsets) const {
    const int64_t count = std::min<int64_t>(kTileKeys, item_.key_end - key);
    if (count <= 0) return 0;
    paged_.locate(key, count, offsets);
    std::fill(offsets + count, offsets + kTileKeys, offsets[count - 1]);
    return count;
  }

  static ENGINE_INLINE void prefetch(const T* row) {
    for (size_t byte = 0; byte < kHeadDim * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
  }

  // `next` are the offsets of the tile to come, fetched from memory while this one is computed.
  void attend(int64_t key, int64_t count, const int64_t* offsets, const int64_t* next) {
    for (int64_t r = 0; r < rows_.count(); r += kRowRun) {
      switch (std::min<int64_t>(kRowRun, rows_.count() - r)) {
        case 1: attend_rows<1>(r, key, count, offsets, next); break;
        case 2: attend_rows<2>(r, key, count, offsets, next); break;
        case 3: attend_rows<3>(r, key, count, offsets, next); break;
        default: attend_rows<4>(r, key, count, offsets, next);
      }
    }
  }

  template <int kRows>
  void attend_rows(int64_t first, int64_t key, int64_t count, const int64_t* offsets, const int64_t* next) {
    alignas(64) float scores[kRows][kTileKeys];
    float rescale[kRows];
    for (int64_t k = 0; k < count; k += kWidth) score<kRows>(first, offsets + k, next + k, &scores[0][k]);
    for (int r = 0; r < kRows; ++r) rescale[r] = softmax(first + r, key, count, scores[r]);
    constexpr int kRun = kVecs < 4 ? kVecs : 4;  // kRows * kRun sums stay in registers
    for (int v = 0; v < kVecs; v += kRun) {
      add_values<kRows, kRun>(first, v * kWidth, count, offsets, v == 0 ? next : offsets, scores, rescale);
    }
  }

  // scores[r][i] for kWidth keys.
  template <int kRows>
  ENGINE_INLINE void score(int64_t first, const int64_t* offsets, const int64_t* next, float* scores) const {
    Vec products[kRows][kWidth];
    for (int i = 0; i < kWidth; ++i) {
      const T* k = paged_.key(offsets[i]);
      prefetch(paged_.key(next[i]));
      Vec sums[kRows] = {};
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const Vec x = load(k + v * kWidth);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r] += x * load(queries_[first + r] + v * kWidth);
      }
      for (int r = 0; r < kRows; ++r) products[r][i] = sums[r];
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) store(scores + r * kTileKeys, sums_of(products[r]));
  }

  // Turns row r's scores of the keys from `key` on into weights; returns the factor for what was summed before.
  ENGINE_INLINE float softmax(int64_t r, int64_t key, int64_t count, float* scores) {
    const int64_t position = rows_.position(r);
    const int64_t begin = std::max<int64_t>(0, position - a_.window + 1 - key);
    const int64_t end = std::min(count, position + 1 - key);
    for (int64_t i = 0; i < std::min(begin, count); ++i) scores[i] = -__builtin_inff();
    for (int64_t i = std::max<int64_t>(end, 0); i < (count + kWidth - 1) / kWidth * kWidth; ++i)
      scores[i] = -__builtin_inff();
    if (begin >= end) {  // sees none of these keys
      for (int64_t i = 0; i < count; ++i) scores[i] = 0;
      return 1.0f;
    }
    Vec highest = broadcast(maxima_[r]);
    for (int64_t i = 0; i < count; i += kWidth) highest = max(highest, load(scores + i));
    float maximum = highest[0];
    for (int lane = 1; lane < kWidth; ++lane) maximum = std::max(maximum, highest[lane]);
    Vec total = {};
    for (int64_t i = 0; i < count; i += kWidth) {
      const Vec weight = exp(load(scores + i) - maximum);
      store(scores + i, weight);
      total += weight;
    }
    const float rescale = exp(broadcast(maxima_[r] - maximum))[0];
    weights_[r] = weights_[r] * rescale + sum(total);
    maxima_[r] = maximum;
    return rescale;
  }

  template <int kRows, int kRun>
  ENGINE_INLINE void add_values(int64_t first, int64_t d, int64_t count, const int64_t* offsets, const int64_t* next,
                                const float (&weights)[kRows][kTileKeys], const float (&rescale)[kRows]) {
    Vec sums[kRows][kRun];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kRun; ++v) sums[r][v] = load(values_[first + r] + d + v * kWidth) * rescale[r];
    for (int64_t i = 0; i < count; ++i) {
      const T* value = paged_.value(offsets[i]) + d;
      prefetch(paged_.value(next[i]));
#pragma GCC unroll 4
      for (int v = 0; v < kRun; ++v) {
        const Vec x = load(value + v * kWidth);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r][v] += x * weights[r][i];
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kRun; ++v) store(values_[first + r] + d + v * kWidth, sums[r][v]);
  }

  const PagedAttentionArgs& a_;
  const AttentionItem& item_;
  const ItemRows<T> rows_;
  const PagedKeys<T> paged_;
  alignas(64) float queries_[kFewRows][kHeadDim];
  alignas(64) float values_[kFewRows][kHeadDim];
  float maxima_[kFewRows];
  float weights_[kFewRows];
};

}  // namespace engine::ENGINE_ISA
