// A small picture of a layout: which ranks are a pipeline stage, a data-parallel place, a tensor-parallel group.
//
//   stage 0  dp0 [0 1]  dp1 [2 3]
//   stage 1  dp0 [4 5]  dp1 [6 7]
//
// In brackets: the ranks that share a sequence's work, tensor-parallel ones side by side, a bar between
// context-parallel parts. What has no room is "…".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

// At most 4 lines of at most `columns` columns; none for a single rank.
std::vector<std::string> rank_picture(const Mesh& mesh, size_t columns);

}  // namespace megalith
