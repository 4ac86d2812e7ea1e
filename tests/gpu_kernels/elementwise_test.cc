// Blocks share a matrix of vectors: one thread visits each vector.
#include "ops/gpu/elementwise.h"

#include <gtest/gtest.h>

#include <vector>

namespace megalith::ops::gpu {
namespace {

void count_visits(VectorGrid grid, int* visits) {
  for_each_vector(grid, [&](int64_t row, int64_t vector) { ++visits[row * grid.vectors + vector]; });
}

TEST(Elementwise, EveryVectorIsVisitedOnce) {
  gpu_emulation::set_settings({});
  // A row of one vector, rows that share a block, rows of one block and of several.
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1}, {700, 1}, {41, 3}, {5, 100}, {3, 256}, {4, 600}};
  for (const auto& [rows, vectors] : shapes) {
    const VectorGrid grid = make_vector_grid(rows, vectors);
    // Fewer blocks than parts take several of these one after the other.
    for (const unsigned blocks : {grid.blocks, (grid.blocks + 1) / 2, 1u}) {
      std::vector<int> visits(static_cast<size_t>(rows * vectors));
      launch("count_visits", count_visits, blocks, kElementwiseThreads, 0, nullptr, grid, visits.data());
      EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << rows << " rows of " << vectors << " by " << blocks;
    }
  }
}

}  // namespace
}  // namespace megalith::ops::gpu
