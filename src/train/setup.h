// From a resolved configuration to the objects of a run: model, weights, data.
#pragma once

#include <memory>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "models/families.h"
#include "train/config.h"

namespace megalith {

// A model on its device, its weights not yet filled.
struct BuiltModel {
  const ModelFamily* family = nullptr;
  std::unique_ptr<Model> model;
  RecomputePlan recompute;  // what its blocks are cut for
};
// allocates_weights  false: the parameters have shapes alone (kMeta), and their memory comes later (FSDP)
BuiltModel build_model(const Resolved& resolved, const Groups& groups, at::Device device,
                       bool allocates_weights = true);

// Weights alone, from --load or --load_hf, for evaluation, generation and inspection. UserError when neither is given.
void load_weights(const Resolved& resolved, const BuiltModel& built, const Groups& groups, Logger& log);

// The tokenizer that lies in the folder of --load_hf, or the byte tokenizer when its vocabulary fits the model's; null
// when there is neither. For commands that need text where training needs none.
std::unique_ptr<Tokenizer> find_tokenizer(const Resolved& resolved);

// The ids at which a text of this model ends: its configuration's, and the tokenizer's end of document. The tokenizer
// may be null.
std::vector<int64_t> find_stop_ids(const Resolved& resolved, const Tokenizer* tokenizer);

// What evaluations read in a run of this length, as Megatron-LM counts it.
DataSetup make_data_setup(const Resolved& resolved);

}  // namespace megalith
