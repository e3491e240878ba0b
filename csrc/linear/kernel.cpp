#include <algorithm>

#include "linear/block.h"

namespace engine::ENGINE_ISA {
namespace {

// Rows [row, row_end) times panels [panel, panel_end), on the calling thread.
void multiply(const LinearArgs& a, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  constexpr int64_t kCachedRows = 512;
  Accelerator accelerator;
  for (int64_t r0 = row; r0 < row_end; r0 += kCachedRows) {
    const int64_t r1 = std::min(r0 + kCachedRows, row_end);
    for (int64_t p = panel; p < panel_end; p += kPanelRun)
      for (int64_t r = r0; r < r1; r += kBlockRows)
        multiply_block(a, accelerator, r, std::min(kBlockRows, r1 - r), p, std::min(p + kPanelRun, panel_end));
  }
}

// The i-th of n nearly equal parts of `size` begins here.
int64_t part(int64_t i, int64_t n, int64_t size) { return size * i / n; }

}  // namespace

void linear(const LinearArgs& a) {
  constexpr int64_t kSerialProducts = 1 << 15;  // below this, waking threads costs more than it saves
  const int64_t panels = (a.out_features + kPanel - 1) / kPanel;
  const int64_t row_blocks = (a.num_rows + kBlockRows - 1) / kBlockRows;
  const int64_t wanted = a.num_rows * a.out_features * a.in_features <= kSerialProducts ? 1 : a.num_threads;
  // Threads share the panels first (each weight is read once) and the rows when panels get few.
  const int64_t panel_parts = std::min(wanted, row_blocks > 1 ? (panels + 3) / 4 : panels);
  const int64_t row_parts = std::min(wanted / panel_parts, row_blocks);
#pragma omp parallel for schedule(static, 1) num_threads(panel_parts * row_parts)
  for (int64_t i = 0; i < panel_parts * row_parts; ++i) {
    const int64_t p = i % panel_parts, r = i / panel_parts;
    multiply(a, part(r, row_parts, row_blocks) * kBlockRows,
             std::min(part(r + 1, row_parts, row_blocks) * kBlockRows, a.num_rows), part(p, panel_parts, panels),
             part(p + 1, panel_parts, panels));
  }
}

}  // namespace engine::ENGINE_ISA
