// The attention library on a GPU: --attention_backend's, or the fastest for the run's shape.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "ops/attention/libraries.h"
#include "train/config.h"

namespace megalith {

struct AttentionChoice {
  ops::AttentionLibraries libraries = {ops::AttentionLibrary::kFlash};
  // For the start-up report: "cuDNN (1.31 ms a layer, and flash attention 1.87 ms)", or "the reference, because …";
  // empty on the CPU and with reference operators.
  std::string text;
};

// Conflicts of --attention_backend with other options; notes Megatron-LM's words.
std::vector<UserError> check_attention_backend(const RuntimeOptions& runtime, std::vector<std::string>& notes);

// On a GPU, times each library on one layer's attention, forward and backward, synchronously. UserError if the
// requested library does not run there.
AttentionChoice choose_attention(const Resolved& resolved, at::Device device);

}  // namespace megalith
