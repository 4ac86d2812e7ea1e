// What a user says about pipelines, and which layers each stage gets from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace megalith {

class OptionVisitor;

struct PipelineOptions {
  std::optional<std::string> pp_algorithm;  // Primus's name; unset: 1f1b
  // Primus's older way to choose: zero-bubble, and zbv.
  bool enable_zero_bubble = false, zero_bubble_v_schedule = false;
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage;
  std::optional<int64_t> num_virtual_stages_per_pipeline_rank;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int64_t> microbatch_group_size_per_virtual_pipeline_stage;
  std::optional<int64_t> decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false, account_for_loss_in_pipeline_split = false;

  void visit(OptionVisitor& v);
};

// What a stage holds: layers first_layer … first_layer + num_layers - 1 of the model.
struct StageLayers {
  int64_t first_layer = 0, num_layers = 0;
  bool has_embedding = false, has_head = false;
  int64_t num_prediction_modules = 0;  // of multi-token prediction; on the last stage unless a layout says otherwise
  bool operator==(const StageLayers&) const = default;
};

// A pipeline as the options ask for it, for a model of num_layers layers.
struct PipelinePlan {
  PipelineAlgorithm algorithm = PipelineAlgorithm::k1f1b;
  StageOrder order = StageOrder::kLoop;
  int num_ranks = 1, num_chunks = 1;
  int microbatch_group = 0;         // 0: num_ranks
  std::vector<StageLayers> stages;  // in the order of the model

  // Whether weight gradients are actions of their own.
  bool splits_backward() const {
    return algorithm == PipelineAlgorithm::kZeroBubble || algorithm == PipelineAlgorithm::kZeroBubbleV;
  }
  PipelineShape shape(int num_microbatches) const;
  PipelineSchedule schedule(int num_microbatches) const;  // with its sends and receives
};

// All that is wrong, in the user's words; empty: make_pipeline_plan() and PipelinePlan::schedule() work for every
// number of microbatches that check_microbatches() lets through. With pipeline_size 1 there is one stage, whatever
// the algorithm.
// num_prediction_modules  that the model has behind its layers: the m of a layout
std::vector<UserError> check_pipeline(const PipelineOptions& options, int64_t pipeline_size, int64_t num_layers,
                                      int64_t num_prediction_modules = 0);
PipelinePlan make_pipeline_plan(const PipelineOptions& options, int64_t pipeline_size, int64_t num_layers,
                                int64_t num_prediction_modules = 0);
std::vector<UserError> check_microbatches(const PipelinePlan& plan, int64_t num_microbatches);

// One stage a string: "Et*3|(tt|)*29,m|L" (Megatron-LM's --pipeline_model_parallel_layout): E embedding, t a decoder
// layer, m a prediction module, L the loss; | ends a stage, x*n repeats a letter or a group in parentheses, commas and
// blanks are decoration. UserError with the place in the text. Says nothing about what the stages hold.
std::vector<std::string> parse_pipeline_layout(const std::string& text);

}  // namespace megalith
