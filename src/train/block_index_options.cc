// See block_index_options.h.
#include "train/block_index_options.h"

#include <fmt/format.h>

#include "core/strings.h"
#include "models/model_bounds.h"

namespace megalith {

void BlockIndexOptions::visit(OptionVisitor& v) {
  v.group("Index of blocks", {.changes_numbers = false});
  v.field("embedding_path", embedding_path,
          "embed --blocks: file for the vectors, .npy (fp32, row i is block i) or .jsonl (with the blocks' places).");
  v.field("block_data_path", block_data_path,
          "embed --blocks: .jsonl file that says of each block, row by row, its document and its sentences.");
  v.field("indexer_batch_size", indexer_batch_size, "embed --blocks: blocks that go through the model together.")
      .unit("blocks")
      .at_least(1)
      .at_most(kMostVocabulary);
  v.field("indexer_log_interval", indexer_log_interval,
          "embed --blocks: batches from one line on the progress to the next.")
      .unit("batches")
      .at_least(1)
      .at_most(INT32_MAX);
}

std::vector<std::string> block_index_notes(const OptionSet& options) {
  std::vector<std::string> set;
  for (const char* name : {"embedding_path", "block_data_path", "indexer_batch_size", "indexer_log_interval"}) {
    if (!options.find(name)->is_default()) set.emplace_back(name);
  }
  if (set.empty()) return {};
  return {fmt::format("{}: read by 'megalith embed --blocks', which makes the index; no effect here", join(set, ", "))};
}

}  // namespace megalith
