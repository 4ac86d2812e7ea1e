// Options of an index: a trained biencoder's vectors of a data set's blocks (kinds/retrieval/block_vectors.h). Names
// and defaults are Megatron-LM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"

namespace megalith {

struct BlockIndexOptions {
  std::optional<std::string> embedding_path, block_data_path;
  int64_t indexer_batch_size = 128;
  int64_t indexer_log_interval = 1000;

  void visit(OptionVisitor& v);
};

// Notes, where no index is made, on options that are set without effect.
std::vector<std::string> block_index_notes(const OptionSet& options);

}  // namespace megalith
