// Texts that a model writes during training (train/sample_options.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinds/text/generation.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"
#include "train/kind.h"

namespace megalith {

struct SamplePlan {
  GenerationRequest request;
  int64_t row_multiple = 1;
  std::string prompt;                    // as shown
  std::unique_ptr<Tokenizer> own;        // if the run has none
  const Tokenizer* tokenizer = nullptr;  // null: ids are shown
};

// The requested samples, with checked prompt and lengths. samples.is_on(); `resolved` must outlive the plan. UserError:
// a text without a tokenizer, or as check_generation().
SamplePlan plan_samples(const Resolved& resolved);

class TextSamples final : public RunSamples {
 public:
  // UserErrors of plan_samples(). The run must outlive it.
  TextSamples(const Resolved& resolved, at::Device device) : plan_(plan_samples(resolved)), device_(device) {}
  void show(PipelinedModel& model, int64_t iteration, const std::vector<std::unique_ptr<MetricsSink>>& sinks) override;

 private:
  SamplePlan plan_;
  at::Device device_;
};

}  // namespace megalith
