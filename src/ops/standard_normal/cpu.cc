// Box and Muller's transform with ATen's vectorised functions.
#include <numbers>

#include "ops/cpu/lanes.h"
#include "ops/cpu/philox_lanes.h"
#include "ops/standard_normal/kernel.h"

namespace megalith::ops::cpu::CPU_CAPABILITY {

void approximate_normals(uint64_t key, uint64_t block, double* out) {
  using D = Lanes<double>;
  static_assert(kNormalBlocks % D::size() == 0);
  uint64_t low[kNormalBlocks], high[kNormalBlocks] = {};
  uint32_t words[4][kNormalBlocks];
  for (int i = 0; i < kNormalBlocks; ++i) low[i] = block + static_cast<uint64_t>(i);
  philox_lanes(key, low, high, words);
  for (int pair = 0; pair < 2; ++pair) {
    double u[kNormalBlocks], angle[kNormalBlocks], values[2][kNormalBlocks];
    for (int i = 0; i < kNormalBlocks; ++i) {
      u[i] = (words[2 * pair][i] + 0.5) * 0x1p-32;
      angle[i] = 2 * std::numbers::pi * (words[2 * pair + 1][i] * 0x1p-32);
    }
    for (int i = 0; i < kNormalBlocks; i += D::size()) {
      const D radius = (D(-2) * D::loadu(u + i).log()).sqrt(), turn = D::loadu(angle + i);
      (radius * turn.cos()).store(values[0] + i);
      (radius * turn.sin()).store(values[1] + i);
    }
    for (int i = 0; i < kNormalBlocks; ++i) {
      out[4 * i + 2 * pair] = values[0][i];
      out[4 * i + 2 * pair + 1] = values[1][i];
    }
  }
}

}  // namespace megalith::ops::cpu::CPU_CAPABILITY
