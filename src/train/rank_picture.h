// A layout's small picture: ranks by pipeline stage, data-parallel place and tensor-parallel group.
//
//   stage 0  dp0 [0 1]  dp1 [2 3]
//   stage 1  dp0 [4 5]  dp1 [6 7]
//
// Brackets hold the ranks that share a sequence, tensor-parallel ones side by side, bars between context-parallel
// parts; "…" for what does not fit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

// At most 4 lines of at most `columns`; none for a single rank.
std::vector<std::string> rank_picture(const Mesh& mesh, size_t columns);

}  // namespace megalith
