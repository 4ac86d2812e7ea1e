// What tasks depend on beyond their own options.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kinds/flow/flux_batches.h"
#include "models/model_config.h"
#include "tokenizer/special_ids.h"
#include "train/task_options.h"

namespace megalith {

class Tokenizer;

struct TaskSetup {
  uint64_t seed = 1234;  // of everything that the task draws
  int64_t vocab_size = 0;
  SpecialIds special_ids;                // of the tokenizer, and what the model's configuration says of it
  const Tokenizer* tokenizer = nullptr;  // outlives the task; null when the run has none
  bool has_sentence_head = false;        // the model says whether two segments are in order
  bool has_instructions = false;         // the data are rows of instructions
  int64_t samples_at_once = 0;           // of a microbatch on all data-parallel ranks; 0: not known
  std::vector<int64_t> top_ks = {};      // accuracies that the model tells of its set of samples
  std::optional<double> dpo_beta = {};   // of pairs of answers; none: the data are others
  FluxSampleShape flux_shape = {};       // of pictures and captions, as the model takes them
  bool has_guidance = false;             // which the model is told
  std::optional<ModelConfig> classifier = {};  // the model, where it is one
  int64_t global_batch_size = 0;
};

}  // namespace megalith
