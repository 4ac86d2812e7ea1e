// A biencoder's initial encoders: a BERT's weights (--bert_load), without heads.
#pragma once

#include <span>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/error.h"
#include "core/log.h"
#include "train/config.h"

namespace megalith {

// Reasons why bert_load cannot serve this run: no BERT there, or options that differ. Reads only descriptions.
std::vector<UserError> check_bert_load(const Resolved& resolved);

// Fills the encoders from a BERT, except the linear layers after them. UserErrors of find_checkpoint() and
// load_store(). Collective over the world.
// tensors  all of the model
void load_bert(const std::string& folder, std::span<const CheckpointTensor> tensors, const Groups& groups, Logger& log,
               NonfiniteWeights nonfinite);

}  // namespace megalith
