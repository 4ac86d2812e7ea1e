// The user's pipeline options, and each stage's units.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "core/error.h"
#include "parallel/pipeline/pipeline_plan.h"

namespace megalith {

class OptionVisitor;

struct PipelineOptions {
  std::optional<std::string> pp_algorithm;  // Primus's name; unset: 1f1b
  // Primus's older words for zero-bubble and zbv.
  bool enable_zero_bubble = false, zero_bubble_v_schedule = false;
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage;
  std::optional<int64_t> num_virtual_stages_per_pipeline_rank;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int64_t> microbatch_group_size_per_virtual_pipeline_stage;
  std::optional<int64_t> decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false, account_for_loss_in_pipeline_split = false;
  bool allow_padding_num_layers = false;
  // With model_type t5: the encoder's stages, in Megatron-LM's older and newer words.
  std::optional<int64_t> pipeline_model_parallel_split_rank;
  int64_t encoder_pipeline_model_parallel_size = 0, encoder_tensor_model_parallel_size = 0;  // 0: unset

  void visit(OptionVisitor& v);
};

// All errors; if empty, make_pipeline_plan() and PipelinePlan::schedule() work for every number of microbatches that
// passes check_microbatches(). With pipeline_size 1 there is one stage, whatever the algorithm. Ignores
// encoder_tensor_model_parallel_size, which concerns another axis.
// units  in model order. Those with a layer's letter are distributed, by layers_worth; others stay in the first stage
//        before the first layer, and in the last stage after the last.
std::vector<UserError> check_pipeline(const PipelineOptions& options, int64_t pipeline_size,
                                      std::span<const Unit> units);
PipelinePlan make_pipeline_plan(const PipelineOptions& options, int64_t pipeline_size, std::span<const Unit> units);
std::vector<UserError> check_microbatches(const PipelinePlan& plan, int64_t num_microbatches);

// One string per stage from "Et*3|(tt|)*29,m|L" (Megatron-LM's --pipeline_model_parallel_layout): E embedding, t a
// decoder layer, m a prediction module, L the loss; | ends a stage, x*n repeats a letter or parenthesised group, commas
// and blanks are ignored. UserError with the position. Does not check the stages' content.
std::vector<std::string> parse_pipeline_layout(const std::string& text);

}  // namespace megalith
