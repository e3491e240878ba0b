// A block of rows times a run of panels. Two ways: AMX tiles, or vectors (with or without bfloat16 dot products).
#pragma once

#include <algorithm>

#include "common/simd.h"
#include "linear/linear.h"

namespace engine::ENGINE_ISA {

constexpr int kPanelVecs = kPanel / kWidth;

// Panels that a thread takes before it moves to the next rows, so that they stay in its cache.
constexpr int64_t kPanelRun = 8;

// output[row, panel's features] = sums + bias, leaving out the features past the last.
ENGINE_INLINE void store_sums(const LinearArgs& a, int64_t row, int64_t panel, const Vec* sums) {
  for (int v = 0; v < kPanelVecs; ++v) {
    const int64_t feature = panel * kPanel + v * kWidth;
    const int64_t n = std::min<int64_t>(a.out_features - feature, kWidth);
    if (n <= 0) return;
    BFloat16* out = a.output + row * a.out_features + feature;
    if (n == kWidth) {
      store(out, a.bias != nullptr ? sums[v] + load(a.bias + feature) : sums[v]);
    } else {
      store_partial(out, a.bias != nullptr ? sums[v] + load_partial(a.bias + feature, n) : sums[v], n);
    }
  }
}

#if defined(__AMX_BF16__)

constexpr int64_t kTileRows = 16;
constexpr int64_t kBlockRows = 2 * kTileRows;

// The hardware's description of its eight tiles: 0-3 hold sums, 4-5 rows of x, 6-7 (or 5-7) panels.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16];
};

// Tiles for `num_rows` <= 32 rows: one row tile (sums 0-3, x in 4), or two (sums 0-1 and 2-3, x in 4 and 5).
inline void configure_tiles(int64_t num_rows) {
  const uint8_t first = std::min(num_rows, kTileRows), second = num_rows - first;
  TileConfig config;
  if (second > 0) {
    const uint8_t rows[16] = {first, first, second, second, first, second, 16, 16};
    std::copy(rows, rows + 16, config.rows);
  } else {
    const uint8_t rows[16] = {first, first, first, first, first, 16, 16, 16};
    std::copy(rows, rows + 16, config.rows);
  }
  _tile_loadconfig(&config);
}

// A thread's use of the tile registers; they start undefined and are given back at the end.
class Accelerator {
 public:
  Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  ~Accelerator() {
    if (configured_rows_ != 0) _tile_release();
  }
  void prepare(int64_t num_rows) {
    if (num_rows == configured_rows_) return;
    configure_tiles(num_rows);
    configured_rows_ = num_rows;
  }

 private:
  int64_t configured_rows_ = 0;
};

// Where tiles of sums go on their way to the output: the tiles of neighbouring panels lie side by side.
template <int kPanels>
struct TileSums {
  static constexpr int64_t kRowBytes = kPanels * kPanel * sizeof(float);
  alignas(64) float data[kTileRows][kPanels * kPanel];

  // The first kCount panels of it.
  template <int kCount>
  void store_rows(const LinearArgs& a, int64_t row, int64_t num_rows, int64_t panel) const {
    const bool whole = (panel + kCount) * kPanel <= a.out_features;
    for (int64_t r = 0; r < num_rows; ++r) {
      int p = 0;
      for (; whole && p + 2 <= kCount; p += 2) store_pair(a, row + r, panel + p, data[r] + p * kPanel);
      for (; p < kCount; ++p) {
        const Vec v = load(data[r] + p * kPanel);
        store_sums(a, row + r, panel + p, &v);
      }
    }
  }

 private:
  // Both panels with one store, which is a whole cache line more often than not.
  static ENGINE_INLINE void store_pair(const LinearArgs& a, int64_t row, int64_t panel, const float* sums) {
    const int64_t feature = panel * kPanel;
    Vec low = load(sums), high = load(sums + kPanel);
    if (a.bias != nullptr) {
      low += load(a.bias + feature);
      high += load(a.bias + feature + kPanel);
    }
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    std::memcpy(a.output + row * a.out_features + feature, &both, sizeof(both));
  }
};

// Up to 16 rows and kPanels <= 4 panels.
template <int kPanels>
inline void one_row_tile(const LinearArgs& a, int64_t row, int64_t num_rows, int64_t panel) {
  _tile_zero(0);
  if constexpr (kPanels > 1) _tile_zero(1);
  if constexpr (kPanels > 2) _tile_zero(2);
  if constexpr (kPanels > 3) _tile_zero(3);
  const BFloat16* x = a.row(row);
  const BFloat16* w = a.panel(panel);
  const int64_t next = kPanel * a.in_features;
  for (int64_t k = 0; k < a.in_features; k += kDepth) {
    const BFloat16* wk = w + k * kPanel;
    _tile_loadd(4, x + k, a.input_stride * sizeof(BFloat16));
    _tile_loadd(5, wk, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kPanels > 1) {
      _tile_loadd(6, wk + next, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kPanels > 2) {
      _tile_loadd(7, wk + 2 * next, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kPanels > 3) {
      _tile_loadd(5, wk + 3 * next, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  TileSums<kPanels> sums;
  _tile_stored(0, sums.data[0], sums.kRowBytes);
  if constexpr (kPanels > 1) _tile_stored(1, sums.data[0] + kPanel, sums.kRowBytes);
  if constexpr (kPanels > 2) _tile_stored(2, sums.data[0] + 2 * kPanel, sums.kRowBytes);
  if constexpr (kPanels > 3) _tile_stored(3, sums.data[0] + 3 * kPanel, sums.kRowBytes);
  sums.template store_rows<kPanels>(a, row, num_rows, panel);
}

// 17 to 32 rows and one or two panels, over [k, k_end) of the depth; the sums so far wait in `sums`.
template <int kPanels>
inline void two_row_tiles(const LinearArgs& a, int64_t row, int64_t num_rows, int64_t panel, int64_t k, int64_t k_end,
                          TileSums<2> (&sums)[2]) {
  constexpr int64_t kRowBytes = TileSums<2>::kRowBytes;
  float *first = sums[0].data[0], *second = sums[1].data[0];
  if (k == 0) {
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (kPanels > 1) _tile_zero(1);
    if constexpr (kPanels > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, first, kRowBytes);
    _tile_loadd(2, second, kRowBytes);
    if constexpr (kPanels > 1) _tile_loadd(1, first + kPanel, kRowBytes);
    if constexpr (kPanels > 1) _tile_loadd(3, second + kPanel, kRowBytes);
  }
  const BFloat16* x = a.row(row);
  const BFloat16* w = a.panel(panel);
  const int64_t stride = a.input_stride * sizeof(BFloat16);
  for (int64_t i = k; i < k_end; i += kDepth) {
    _tile_loadd(4, x + i, stride);
    _tile_loadd(6, w + i * kPanel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, x + kTileRows * a.input_stride + i, stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, w + (a.in_features + i) * kPanel, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, first, kRowBytes);
  _tile_stored(2, second, kRowBytes);
  if constexpr (kPanels > 1) _tile_stored(1, first + kPanel, kRowBytes);
  if constexpr (kPanels > 1) _tile_stored(3, second + kPanel, kRowBytes);
  if (k_end < a.in_features) return;
  sums[0].template store_rows<kPanels>(a, row, kTileRows, panel);
  sums[1].template store_rows<kPanels>(a, row + kTileRows, num_rows - kTileRows, panel);
}

// 17 to 32 rows times panels [panel, end), at most kPanelRun. Goes through the depth in runs, so that the rows'
// part stays in the first-level cache while the panels' parts pass by.
inline void multiply_two_row_tiles(const LinearArgs& a, int64_t row, int64_t num_rows, int64_t panel, int64_t end) {
  constexpr int64_t kDepthRun = 288;
  TileSums<2> sums[kPanelRun / 2][2];
  for (int64_t k = 0; k < a.in_features; k += kDepthRun) {
    const int64_t k_end = std::min(k + kDepthRun, a.in_features);
    int64_t p = panel;
    for (; p + 2 <= end; p += 2) two_row_tiles<2>(a, row, num_rows, p, k, k_end, sums[(p - panel) / 2]);
    if (p < end) two_row_tiles<1>(a, row, num_rows, p, k, k_end, sums[(p - panel) / 2]);
  }
}

// Rows [row, row + num_rows), at most kBlockRows, times panels [panel, end), at most kPanelRun.
inline void multiply_block(const LinearArgs& a, Accelerator& tiles, int64_t row, int64_t num_rows, int64_t panel,
                           int64_t end) {
  tiles.prepare(num_rows);
  if (num_rows > kTileRows) return multiply_two_row_tiles(a, row, num_rows, panel, end);
  for (; panel + 4 <= end; panel += 4) one_row_tile<4>(a, row, num_rows, panel);
  if (end - panel == 3) one_row_tile<3>(a, row, num_rows, panel);
  if (end - panel == 2) one_row_tile<2>(a, row, num_rows, panel);
  if (end - panel == 1) one_row_tile<1>(a, row, num_rows, panel);
}

#else

#if defined(__AVX512F__)
constexpr int64_t kBlockRows = 6, kBlockPanels = 4;  // 24 sums in 32 registers
#else
constexpr int64_t kBlockRows = 8 / kPanelVecs, kBlockPanels = 1;  // 8 sums in 16 registers
#endif

struct Accelerator {};  // vectors need no preparation

// sums += pair of x * pairs of w, two products each.
ENGINE_INLINE Vec dot_pairs(Vec sums, uint32_t x, UVec w) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sums, (__m512bh)broadcast(x), (__m512bh)w);
#else
  sums += (Vec)broadcast(x << 16) * (Vec)(w << 16);
  return sums + (Vec)broadcast(x & 0xffff0000u) * (Vec)(w & 0xffff0000u);
#endif
}

template <int kRows, int kPanels>
inline void multiply_tile(const LinearArgs& a, int64_t row, int64_t panel) {
  constexpr int kVecs = kPanels * kPanelVecs;
  Vec sums[kRows][kVecs] = {};
  const BFloat16* x = a.row(row);
  const BFloat16* w = a.panel(panel);
  for (int64_t k = 0; k < a.in_features; k += 2) {
    UVec weights[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      weights[v] = load_bits<UVec>(w + v / kPanelVecs * kPanel * a.in_features + k * kPanel + v % kPanelVecs * kWidth * 2);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint32_t pair = load_bits<uint32_t>(x + r * a.input_stride + k);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[r][v] = dot_pairs(sums[r][v], pair, weights[v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) store_sums(a, row + r, panel + p, sums[r] + p * kPanelVecs);
}

// Chooses the template for num_rows <= kRows.
template <int kRows>
inline void multiply_rows(const LinearArgs& a, int64_t row, int64_t num_rows, int64_t panel, int64_t end) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return multiply_rows<kRows - 1>(a, row, num_rows, panel, end);
  }
  for (; panel + kBlockPanels <= end; panel += kBlockPanels) multiply_tile<kRows, kBlockPanels>(a, row, panel);
  for (; panel < end; ++panel) multiply_tile<kRows, 1>(a, row, panel);
}

inline void multiply_block(const LinearArgs& a, Accelerator&, int64_t row, int64_t num_rows, int64_t panel,
                           int64_t end) {
  multiply_rows<kBlockRows>(a, row, num_rows, panel, end);
}

#endif

}  // namespace engine::ENGINE_ISA
