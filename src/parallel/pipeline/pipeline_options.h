// What a user says about pipelines, and which units of the model each stage gets from it.
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
  // Primus's older way to choose: zero-bubble, and zbv.
  bool enable_zero_bubble = false, zero_bubble_v_schedule = false;
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage;
  std::optional<int64_t> num_virtual_stages_per_pipeline_rank;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int64_t> microbatch_group_size_per_virtual_pipeline_stage;
  std::optional<int64_t> decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false, account_for_loss_in_pipeline_split = false;
  bool allow_padding_num_layers = false;
  // With model_type t5: stages that hold the encoder, in Megatron-LM's older and newer words.
  std::optional<int64_t> pipeline_model_parallel_split_rank;
  int64_t encoder_pipeline_model_parallel_size = 0, encoder_tensor_model_parallel_size = 0;  // 0: not said

  void visit(OptionVisitor& v);
};

// All that is wrong, in the user's words; empty: make_pipeline_plan() and PipelinePlan::schedule() work for every
// number of microbatches that check_microbatches() lets through. With pipeline_size 1 there is one stage, whatever
// the algorithm.
// encoder_tensor_model_parallel_size is not looked at: it is about ranks of another axis.
// units  of the model, in its order. Only those with the letter of a layer are shared out, by layers_worth; those in
//        front of the first layer stay with the first stage, those behind the last layer with the last stage.
std::vector<UserError> check_pipeline(const PipelineOptions& options, int64_t pipeline_size,
                                      std::span<const Unit> units);
PipelinePlan make_pipeline_plan(const PipelineOptions& options, int64_t pipeline_size, std::span<const Unit> units);
std::vector<UserError> check_microbatches(const PipelinePlan& plan, int64_t num_microbatches);

// One stage a string: "Et*3|(tt|)*29,m|L" (Megatron-LM's --pipeline_model_parallel_layout): E embedding, t a decoder
// layer, m a prediction module, L the loss; | ends a stage, x*n repeats a letter or a group in parentheses, commas and
// blanks are decoration. UserError with the place in the text. Says nothing about what the stages hold.
std::vector<std::string> parse_pipeline_layout(const std::string& text);

}  // namespace megalith
