// megalith embed --blocks: the index of a trained biencoder, and the blocks nearest to queries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"
#include "train/config.h"

namespace megalith {

// The request, apart from the run's configuration.
struct BlockRequest {
  std::vector<std::string> queries;
  std::optional<std::string> output;  // file for the vectors
  bool normalise = false;
};

// Errors, including index options if no blocks are asked for.
std::vector<UserError> check_blocks(const Resolved& resolved, bool asks_for_blocks);

// Builds and writes the index within the session, and prints the nearest blocks.
int embed_blocks(CommandContext& context, Session& session, const Launch& launch, const BlockRequest& request,
                 const Tokenizer& tokenizer);

}  // namespace megalith
