// Which of the vendors' libraries a run's attention is left to on a GPU: what --attention_backend says, or what is
// faster on this device for the run's shape.
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
  // empty where there is nothing to choose, which is on the CPU and with the references of all operators.
  std::string text;
};

// What --attention_backend cannot be together with other options. Megatron-LM's words for a back end are told once.
std::vector<UserError> check_attention_backend(const RuntimeOptions& runtime, std::vector<std::string>& notes);

// On a GPU it runs each library on the attention of one layer and microbatch, forward and backward, and waits for it.
// UserError when the library that was asked for does not run there.
AttentionChoice choose_attention(const Resolved& resolved, at::Device device);

}  // namespace megalith
