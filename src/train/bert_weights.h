// What the encoders of a biencoder start from: the weights of a BERT (--bert_load), without its heads.
#pragma once

#include <span>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/error.h"
#include "core/log.h"
#include "train/config.h"

namespace megalith {

// Why bert_load cannot serve this run: nothing of the kind lies there, or the BERT differs from the encoders, option by
// option. Empty when it can, and without bert_load. Reads only descriptions, no weights.
std::vector<UserError> check_bert_load(const Resolved& resolved);

// Fills what the encoders have of a BERT; the linear layers behind them stay as they are. UserErrors of
// find_checkpoint() and load_store(). Collective over the world.
// tensors  all of the model
void load_bert(const std::string& folder, std::span<const CheckpointTensor> tensors, const Groups& groups, Logger& log,
               NonfiniteWeights nonfinite);

}  // namespace megalith
