// A run's task, and the options of tasks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"

namespace megalith {

enum class TaskKind { kCausalLm, kMaskedLm, kBert, kT5, kIct, kFlowMatching, kClassification };

// Distribution of the noise share of training samples.
enum class TimestepSampling { kUniform, kLogitNormal, kMode, kFixed };

struct TaskOptions {
  TaskKind task = TaskKind::kCausalLm;
  double mask_prob = 0.15;
  std::optional<int64_t> mask_token_id;       // default: the tokenizer's
  double short_seq_prob = 0.1;                // of kBert and kT5
  std::optional<int64_t> decoder_seq_length;  // kT5, required
  // Of kIct.
  std::optional<std::string> titles_data_path;
  double query_in_block_prob = 0.1;
  bool use_one_sent_docs = false;
  // For kFlowMatching.
  TimestepSampling timestep_sampling_strategy = TimestepSampling::kUniform;
  double logit_mean = 0, logit_std = 1, mode_scale = 1.29;
  double fixed_timestep = 0.5;
  std::optional<double> flow_shift;       // as given; read by FlowMatching
  std::vector<double> cfg_dropout_prob;   // none, one number, or T5's and CLIP's
  double guidance_scale = 1;

  void visit(OptionVisitor& v);
};

}  // namespace megalith
