// Vectors of texts: a model's token states, pooled to one vector per text.
//
// The model is built without a head; of an encoder-decoder only the encoder. Texts of similar length are batched,
// padded to the longest; padding is neither attended to nor pooled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "kinds/encoder/sentence_folder.h"
#include "train/memory_check.h"
#include "train/setup.h"

namespace megalith {

// A model for its states, and the whole one without storage, for a weights file's other tensors.
struct StatesModel {
  BuiltModel whole, built;
};

// Changes the run's plan to one pipeline stage that ends with the states. Call after checking the configuration, before
// estimating memory.
//   returns the whole model's plan
PipelinePlan plan_states(Resolved& resolved, bool has_pooler);

// After plan_states(), which returned `whole`.
StatesModel build_states_model(Resolved& resolved, const PipelinePlan& whole, const Groups& groups, at::Device device);

// A rank's memory for `rows` texts of `length` tokens.
MemoryMeasure estimate_vectors(int64_t rows, int64_t length);

// (b, longest) int64 ids on the CPU, and the texts' lengths (b). Padding may be any id.
struct PaddedTexts {
  at::Tensor tokens, lengths;
};
// The selected texts.
PaddedTexts padded_texts(std::span<const std::vector<int32_t>> texts, std::span<const int64_t> rows);
// For use outside training.
//   has_encoder  of an encoder-decoder: the tokens are the encoder's
ModelInput input_of_texts(const PaddedTexts& texts, bool has_encoder, at::Device device);

struct VectorSettings {
  Pooling pooling = Pooling::kMean;
  bool normalise = false;
  int64_t rows = 32;  // texts per batch
};

// Each text's ids, at least one -> (texts, h) fp32 on the CPU, on every rank. Data-parallel ranks share the texts.
// on_done receives the number of texts that all ranks finished since the last call.
at::Tensor text_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> texts,
                        const VectorSettings& settings, const Groups& groups, at::Device device,
                        const std::function<void(int64_t)>& on_done = {});

// states (b, s, h), lengths (b) int64 on the CPU -> (b, h) fp32
at::Tensor pooled_states(const at::Tensor& states, const at::Tensor& lengths, Pooling pooling);

}  // namespace megalith
