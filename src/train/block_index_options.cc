// See block_index_options.h.
#include "train/block_index_options.h"

#include <fmt/format.h>

#include "core/strings.h"
#include "models/model_bounds.h"

namespace megalith {
namespace {

constexpr std::string_view kIndexOfBlocks = "Index of blocks";

}  // namespace

void BlockIndexOptions::visit(OptionVisitor& v) {
  v.group(kIndexOfBlocks, {.changes_numbers = false, .acts_in = {RunCommand::kEmbed}});
  v.field("embedding_path", embedding_path,
          "embed --blocks: file for the vectors, .npy (fp32, row i is block i) or .jsonl (with the blocks' places).");
  v.field("block_data_path", block_data_path,
          "embed --blocks: .jsonl file that says of each block, row by row, its document and its sentences.");
  v.field("indexer_batch_size", indexer_batch_size, "embed --blocks: blocks that go through the model together.")
      .unit("blocks")
      .within(1, kMostVocabulary);
  v.field("indexer_log_interval", indexer_log_interval,
          "embed --blocks: batches from one line on the progress to the next.")
      .unit("batches")
      .within(1, INT32_MAX);
}

std::vector<std::string> block_index_notes(const OptionSet& options) {
  std::vector<std::string> set;
  for (const auto& option : options.options()) {
    if (option->group() == kIndexOfBlocks && !option->is_default()) set.push_back(option->name());
  }
  if (set.empty()) return {};
  return {fmt::format("{}: read by 'megalith embed --blocks', which makes the index; no effect here", join(set, ", "))};
}

}  // namespace megalith
