// Items of many rows (prefill): bound by arithmetic, so blocked for registers and cache.
//
// Vectors run along rows: a strip of three vectors of rows is multiplied with one broadcast element of a
// key or a value at a time, and no sum ever crosses lanes. Flash attention's online softmax
// (Dao et al., 2022), one lane a row.
#pragma once

#include "paged_attention/rows.h"

namespace engine::ENGINE_ISA {

constexpr int kStripVecs = 3;
constexpr int64_t kStripRows = kStripVecs * kWidth;
constexpr int64_t kMaxStrips = kTileRows / kStripRows;
#if defined(__AVX512F__)
constexpr int kRun = 8;  // 8 * 3 sums in 32 registers
#else
constexpr int kRun = 4;  // 4 * 3 sums in 16 registers
#endif
static_assert(kTileRows % kStripRows == 0 && kTileKeys % kRun == 0 && kMaxHeadDim % kRun == 0);

// One strip of rows: queries, running maximum and sum of weights, weighted values.
struct Strip {
  alignas(64) float queries[kMaxHeadDim * kStripRows];  // [head_dim, rows]
  alignas(64) float values[kMaxHeadDim * kStripRows];   // [head_dim, rows]
  Vec maxima[kStripVecs];
  Vec weights[kStripVecs];
  IVec positions[kStripVecs];  // the last key each row sees; -1 for the rows past the last
  int64_t first_position, last_position;
};

template <class T>
class ManyRows {
 public:
  ManyRows(const AttentionWork& work, const AttentionItem& item)
      : a_(work.args), item_(item), rows_(work, item), paged_(work.args, item) {}

  void run() {
    const int64_t num_strips = (rows_.count() + kStripRows - 1) / kStripRows;
    for (int64_t s = 0; s < num_strips; ++s) start(strips_[s], s * kStripRows);
    for (int64_t key = item_.key_begin; key < item_.key_end; key += kTileKeys) {
      const int64_t count = std::min<int64_t>(kTileKeys, item_.key_end - key);
      gather(key, count);
      for (int64_t s = 0; s < num_strips; ++s)
        if (sees_any(strips_[s], key, count)) attend(strips_[s], key, count);
    }
    for (int64_t s = 0; s < num_strips; ++s) finish(strips_[s], s * kStripRows);
  }

 private:
  void start(Strip& strip, int64_t first) const {
    const int64_t count = std::min(kStripRows, rows_.count() - first);
    alignas(64) float row[kMaxHeadDim];
    std::fill(strip.queries, strip.queries + a_.head_dim * kStripRows, 0.0f);
    std::fill(strip.values, strip.values + a_.head_dim * kStripRows, 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      widen_row(rows_.query(first + r), row);
      for (int64_t d = 0; d < a_.head_dim; ++d) strip.queries[d * kStripRows + r] = row[d] * a_.scale;
    }
    for (int v = 0; v < kStripVecs; ++v) {
      strip.maxima[v] = broadcast(-__builtin_inff());
      strip.weights[v] = Vec{};
      for (int lane = 0; lane < kWidth; ++lane) {
        const int64_t r = v * kWidth + lane;
        strip.positions[v][lane] = r < count ? rows_.position(first + r) : -1;
      }
    }
    strip.first_position = rows_.position(first);
    strip.last_position = rows_.position(first + count - 1);
    if (count < kStripRows) strip.first_position = -1;
  }

  bool sees_any(const Strip& strip, int64_t key, int64_t count) const {
    return key <= strip.last_position && key + count + a_.window > strip.first_position + 1;
  }

  void widen_row(const T* from, float* to) const {
    int64_t d = 0;
    for (; d + kWidth <= a_.head_dim; d += kWidth) store(to + d, load(from + d));
    if (d < a_.head_dim) store_partial(to + d, load_partial(from + d, a_.head_dim - d), a_.head_dim - d);
  }

  // Copies the tile's keys and values to where they are contiguous; rows up to a multiple of kRun are zero.
  void gather(int64_t key, int64_t count) {
    int64_t offsets[kTileKeys];
    paged_.locate(key, count, offsets);
    for (int64_t i = 0; i < count; ++i) {
      widen_row(paged_.key(offsets[i]), keys_ + i * a_.head_dim);
      widen_row(paged_.value(offsets[i]), values_ + i * a_.head_dim);
    }
    const int64_t padded = (count + kRun - 1) / kRun * kRun;
    std::fill(keys_ + count * a_.head_dim, keys_ + padded * a_.head_dim, 0.0f);
  }

  void attend(Strip& strip, int64_t key, int64_t count) {
    for (int64_t k = 0; k < count; k += kRun) score(strip, k);
    const bool all_visible = key + (count + kRun - 1) / kRun * kRun - 1 <= strip.first_position &&
                             strip.last_position - key < a_.window;
    if (!all_visible) mask(strip, key, count);
    Vec rescale[kStripVecs];
    softmax(strip, count, rescale);
    for (int64_t d = 0; d < a_.head_dim; d += kRun) add_values(strip, d, count, rescale);
  }

  // scores_[k .. k + kRun, rows] = keys * queries.
  void score(const Strip& strip, int64_t k) {
    Vec sums[kRun][kStripVecs] = {};
    const float* keys = keys_ + k * a_.head_dim;
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      Vec queries[kStripVecs];
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) queries[v] = load(strip.queries + d * kStripRows + v * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kRun; ++i) {
        const Vec x = broadcast(keys[i * a_.head_dim + d]);
#pragma GCC unroll 3
        for (int v = 0; v < kStripVecs; ++v) sums[i][v] += queries[v] * x;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRun; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) store(scores_ + (k + i) * kStripRows + v * kWidth, sums[i][v]);
  }

  void mask(const Strip& strip, int64_t key, int64_t count) {
    const int32_t window = static_cast<int32_t>(a_.window);
    for (int64_t i = 0; i < count; ++i) {
      for (int v = 0; v < kStripVecs; ++v) {
        const IVec distance = strip.positions[v] - static_cast<int32_t>(key + i);
        float* scores = scores_ + i * kStripRows + v * kWidth;
        store(scores, (distance >= 0) & (distance < window) ? load(scores) : broadcast(-__builtin_inff()));
      }
    }
  }

  // Turns scores into weights; `rescale` are the factors for what was summed before.
  void softmax(Strip& strip, int64_t count, Vec (&rescale)[kStripVecs]) {
    Vec maxima[kStripVecs], shift[kStripVecs], totals[kStripVecs] = {};
    for (int v = 0; v < kStripVecs; ++v) maxima[v] = strip.maxima[v];
    for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) maxima[v] = max(maxima[v], load(scores_ + i * kStripRows + v * kWidth));
    for (int v = 0; v < kStripVecs; ++v) {
      // A row that has seen no key yet: any finite shift makes its weights zero.
      shift[v] = maxima[v] == -__builtin_inff() ? Vec{} : maxima[v];
      rescale[v] = exp(strip.maxima[v] - shift[v]);
      strip.maxima[v] = maxima[v];
    }
    for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) {
        float* scores = scores_ + i * kStripRows + v * kWidth;
        const Vec weights = exp(load(scores) - shift[v]);
        totals[v] += weights;
        store(scores, weights);
      }
    }
    for (int v = 0; v < kStripVecs; ++v) strip.weights[v] = strip.weights[v] * rescale[v] + totals[v];
  }

  // strip.values[d .. d + kRun, rows] = themselves * rescale + values * weights.
  void add_values(Strip& strip, int64_t d, int64_t count, const Vec (&rescale)[kStripVecs]) {
    Vec sums[kRun][kStripVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kRun; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v)
        sums[i][v] = load(strip.values + (d + i) * kStripRows + v * kWidth) * rescale[v];
    for (int64_t k = 0; k < count; ++k) {
      Vec weights[kStripVecs];
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) weights[v] = load(scores_ + k * kStripRows + v * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kRun; ++i) {
        const Vec x = broadcast(values_[k * a_.head_dim + d + i]);
#pragma GCC unroll 3
        for (int v = 0; v < kStripVecs; ++v) sums[i][v] += weights[v] * x;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRun; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kStripVecs; ++v) store(strip.values + (d + i) * kStripRows + v * kWidth, sums[i][v]);
  }

  void finish(const Strip& strip, int64_t first) const {
    alignas(64) float row[kMaxHeadDim];
    const int64_t count = std::min(kStripRows, rows_.count() - first);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t d = 0; d < a_.head_dim; ++d) row[d] = strip.values[d * kStripRows + r];
      rows_.finish(first + r, row, strip.maxima[r / kWidth][r % kWidth], strip.weights[r / kWidth][r % kWidth]);
    }
  }

  const PagedAttentionArgs& a_;
  const AttentionItem& item_;
  const ItemRows<T> rows_;
  const PagedKeys<T> paged_;
  Strip strips_[kMaxStrips];
  alignas(64) float keys_[kTileKeys * kMaxHeadDim];
  alignas(64) float values_[kTileKeys * kMaxHeadDim];
  alignas(64) float scores_[kTileKeys * kStripRows];  // [keys, rows]
};

}  // namespace engine::ENGINE_ISA
