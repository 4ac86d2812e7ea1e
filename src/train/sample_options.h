// Samples during training, every sample_interval steps: a text, or a picture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

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

}  // namespace megalith
