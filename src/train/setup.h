// Builds a run's objects from a resolved configuration: model, weights, data.
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
#include "train/config.h"
#include "train/pipelined_model.h"
#include "train/task.h"

namespace megalith {

// This rank's share of a model on its device, weights uninitialised.
struct BuiltModel {
  const ModelFamily* family = nullptr;
  PipelinePlan pipeline;
  std::unique_ptr<DeferredGradients> deferred;  // null unless the schedule splits backward
  std::vector<std::unique_ptr<Model>> chunks;
  std::vector<RecomputePlan> recompute;
  std::string attention;  // its library (train/attention_choice.h); empty on a CPU

  ModelChunks view() const;
  const ModelConfig& config() const { return chunks[0]->config(); }
  // In registration order, chunk by chunk, unique.
  std::vector<Parameter*> parameters() const;
  // The recipes' state, for checkpoints.
  std::vector<CheckpointTensor> recipe_tensors() const;
  int64_t num_parameters() const;
};
// allocates_weights  false: parameters have only shapes (kMeta) until FSDP provides memory
BuiltModel build_model(const Resolved& resolved, const Groups& groups, at::Device device,
                       bool allocates_weights = true);

// Builds this rank's chunks from parts. context.deferred_gradients is set here.
BuiltModel build_chunks(const ModelConfig& config, LayerContext context, const PipelinePlan& pipeline,
                        const RecomputeOptions& recompute = {});

// The configured data parallelism. built and groups outlive it.
std::unique_ptr<DataParallel> make_data_parallel(const Resolved& resolved, const BuiltModel& built,
                                                 const Groups& groups, at::Device device);

// Runners of the chunks' blocks: data parallelism, and inside it recomputation and offload. Used until replaced.
struct BlockRunners {
  std::unique_ptr<HostOffload> offload;  // null without offload
  std::vector<std::unique_ptr<RecomputeRunner>> of_chunks;
};
BlockRunners set_block_runners(const BuiltModel& built, DataParallel& data, at::Device device);

// Loads only weights, from --load or --load_hf, for evaluation, generation and inspection. UserError without either.
//   whole  the model of which `built` is a part, without storage: its other tensors are skipped in files. Null: `built`
//          is the model.
void load_weights(const Resolved& resolved, const BuiltModel& built, const Groups& groups, Logger& log,
                  const BuiltModel* whole = nullptr);

// The tokenizer of --load_hf, of this or the checkpoint's run (train/text_tokenizer.h), or bytes if the vocabulary
// fits; else null. For commands that need text although training does not.
std::unique_ptr<Tokenizer> find_tokenizer(const Resolved& resolved);

// Ids that end this model's texts: the configuration's, and the end of document of the tokenizer, which may be null.
std::vector<int64_t> find_stop_ids(const Resolved& resolved, const Tokenizer* tokenizer);

// UserError for options that the task does not support.
std::unique_ptr<Task> make_task(const Resolved& resolved);

// The data of this run's evaluations, as Megatron-LM counts it.
DataSetup make_data_setup(const Resolved& resolved);

}  // namespace megalith
