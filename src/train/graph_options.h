// Options for launching a microbatch on a GPU as one graph (train/microbatch_graphs.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace megalith {

class OptionVisitor;
struct Config;

// The last two are Megatron-LM's words for cuda_graph_impl.
enum class CudaGraphs { kNone, kMicrobatch, kLocal, kTransformerEngine };

struct GraphOptions {
  CudaGraphs cuda_graphs = CudaGraphs::kNone;
  int64_t cuda_graph_warmup_steps = 3;

  bool is_on() const { return cuda_graphs != CudaGraphs::kNone; }
  void visit(OptionVisitor& v);
};

// An error for each obstacle to capture; adds notes.
std::vector<UserError> check_graph_options(const Config& config, std::vector<std::string>& notes);

}  // namespace megalith
