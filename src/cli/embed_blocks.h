// megalith embed --blocks: the index of a trained biencoder, and the blocks nearest to questions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"
#include "train/config.h"

namespace megalith {

// What is asked for beside the run's configuration.
struct BlockRequest {
  std::vector<std::string> queries;
  std::optional<std::string> output;  // file of the vectors
  bool normalise = false;
};

// What cannot work. Options of the index are wrong where no blocks are asked for.
std::vector<UserError> check_blocks(const Resolved& resolved, bool asks_for_blocks);

// Makes the index within the session, writes it, and prints the nearest blocks.
int embed_blocks(CommandContext& context, Session& session, const Launch& launch, const BlockRequest& request,
                 const Tokenizer& tokenizer);

}  // namespace megalith
