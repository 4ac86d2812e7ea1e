// Grids too large to be run whole.
#pragma once

#include <cstdint>

namespace megalith::gpu_emulation {

// Each launch from now on runs only its last so many blocks; 0: all.
void run_last_blocks(uint64_t blocks);

}  // namespace megalith::gpu_emulation
