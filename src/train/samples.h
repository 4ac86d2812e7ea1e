// Samples during training, every sample_interval steps: a text, or a picture (train/picture_samples.h). Sampling only
// reads the weights: the run is the same without it, bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "metrics/step_record.h"
#include "models/model.h"
#include "tasks/task.h"
#include "tokenizer/tokenizer.h"
#include "train/generation.h"

namespace megalith {

struct Resolved;

struct SampleOptions {
  std::optional<int64_t> sample_interval;
  std::optional<std::string> sample_prompt;
  std::vector<int64_t> sample_prompt_ids;
  std::optional<int64_t> sample_max_new_tokens;  // default: 64, or the remaining positions

  // Pictures.
  std::optional<int64_t> sample_steps;  // default: 28 with a guidance embedder, else 4
  std::optional<double> sample_guidance;
  std::optional<std::string> sample_folder;  // default: samples in the folder of save

  void visit(OptionVisitor& v);
  bool is_on() const { return sample_interval.has_value(); }
  bool is_due(int64_t iteration) const { return sample_interval && iteration % *sample_interval == 0; }
};

// The rules between these options; empty if all hold.
std::vector<UserError> check_sample_options(const SampleOptions& options);

struct SamplePlan {
  GenerationRequest request;
  std::string prompt;                    // as shown
  std::unique_ptr<Tokenizer> own;        // if the run has none
  const Tokenizer* tokenizer = nullptr;  // null: ids are shown
};

// The requested samples, with checked prompt and lengths. samples.is_on(); the plan must not outlive `resolved`.
// UserError: a text without a tokenizer, or what check_generation() throws.
SamplePlan plan_samples(const Resolved& resolved);

// A continuation with the current weights, without dropout; the same on every rank.
GenerationRecord make_generation(const SamplePlan& plan, PipelinedModel& model, int64_t iteration, at::Device device);

}  // namespace megalith
