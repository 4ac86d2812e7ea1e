// Inputs of tasks beyond their own options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinds/flow/flux_batches.h"
#include "models/model_config.h"
#include "tokenizer/special_ids.h"
#include "train/task_options.h"

namespace megalith {

class Tokenizer;

// Factors of the losses of good and bad answers.
struct KtoWeights {
  double of_good = 1, of_bad = 1;
};

struct TaskSetup {
  uint64_t seed = 1234;  // of all draws of the task
  int64_t vocab_size = 0;
  SpecialIds special_ids;                      // of the tokenizer, completed by the model's configuration
  const Tokenizer* tokenizer = nullptr;        // outlives the task; null if the run has none
  bool has_sentence_head = false;              // the model predicts whether two segments are in order
  bool has_instructions = false;               // data are rows of instructions
  int64_t samples_at_once = 0;                 // microbatch size over all data-parallel ranks; 0: unknown
  std::vector<int64_t> top_ks = {};            // accuracies reported by the model for its set of samples
  std::vector<std::string> set_names = {};     // of training sets whose losses are reported
  std::optional<double> dpo_beta = {};         // for pairs and rated answers; unset for other data
  std::optional<KtoWeights> kto = {};          // for rated answers
  FluxSampleShape flux_shape = {};             // of pictures and captions, as the model takes them
  bool has_guidance = false;                   // an input of the model
  std::optional<ModelConfig> classifier = {};  // the model, if it is one
  int64_t global_batch_size = 0;
};

}  // namespace megalith
