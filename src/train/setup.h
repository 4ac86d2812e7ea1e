// From a resolved configuration to the objects of a run: model, weights, data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "comm/groups.h"
#include "core/log.h"
#include "data/data_sets.h"
#include "models/families.h"
#include "parallel/data_parallel.h"
#include "parallel/recompute.h"
#include "tasks/task.h"
#include "train/config.h"
#include "train/pipelined_model.h"

namespace megalith {

// What this rank holds of a model, on its device, the weights not yet filled.
struct BuiltModel {
  const ModelFamily* family = nullptr;
  PipelinePlan pipeline;
  std::unique_ptr<DeferredGradients> deferred;  // null when the schedule does not split backward
  std::vector<std::unique_ptr<Model>> chunks;   // by chunk index
  std::vector<RecomputePlan> recompute;         // of each chunk: what its blocks are cut for
  std::string attention;                        // who computes it (train/attention_choice.h); empty on a CPU

  ModelChunks view() const;
  const ModelConfig& config() const { return chunks[0]->config(); }
  // In registration order, chunk after chunk; none twice.
  std::vector<Parameter*> parameters() const;
  // What the recipes remember, for checkpoints.
  std::vector<CheckpointTensor> recipe_tensors() const;
  int64_t num_parameters() const;
};
// allocates_weights  false: the parameters have only shapes (kMeta), and their memory comes later (FSDP)
BuiltModel build_model(const Resolved& resolved, const Groups& groups, at::Device device,
                       bool allocates_weights = true);

// The same from its parts: this rank's chunks of the pipeline. context.deferred_gradients is set here.
BuiltModel build_chunks(const ModelConfig& config, LayerContext context, const PipelinePlan& pipeline,
                        const RecomputeOptions& recompute = {});

// What the configuration says of data parallelism, around this model. built and groups outlive it.
std::unique_ptr<DataParallel> make_data_parallel(const Resolved& resolved, const BuiltModel& built,
                                                 const Groups& groups, at::Device device);

// What the chunks run their blocks through: data parallelism, and within it what is computed again and offloaded. The
// chunks use it until they are given another.
struct BlockRunners {
  std::unique_ptr<HostOffload> offload;                     // null when nothing is offloaded
  std::vector<std::unique_ptr<RecomputeRunner>> of_chunks;  // by chunk index
};
BlockRunners set_block_runners(const BuiltModel& built, DataParallel& data, at::Device device);

// Only weights, from --load or --load_hf, for evaluation, generation and inspection. UserError when neither is given.
//   whole  where `built` is a part of a model: all of it, without storage; what it has and `built` has not is passed
//          over in the files. Null: `built` is the model.
void load_weights(const Resolved& resolved, const BuiltModel& built, const Groups& groups, Logger& log,
                  const BuiltModel* whole = nullptr);

// The tokenizer that came with --load_hf, now or when the checkpoint was trained (train/text_tokenizer.h), or the byte
// tokenizer when its vocabulary fits the model's; null when there is neither. For commands that need text where
// training needs none.
std::unique_ptr<Tokenizer> find_tokenizer(const Resolved& resolved);

// The ids at which a text of this model ends: its configuration's, and the tokenizer's end of document. The tokenizer
// may be null.
std::vector<int64_t> find_stop_ids(const Resolved& resolved, const Tokenizer* tokenizer);

// The run's task. UserError for options that it cannot work with.
std::unique_ptr<Task> make_task(const Resolved& resolved);

// What evaluations read in a run of this length, as Megatron-LM counts it.
DataSetup make_data_setup(const Resolved& resolved);

}  // namespace megalith
