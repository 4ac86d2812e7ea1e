// Vectors of texts: a model's states of the tokens, pooled into one vector a text.
//
// The model is built without what predicts: no head, and of an encoder and decoder only the encoder. Texts of about one
// length go through it together, padded to the longest; padding is not attended to, and not pooled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "train/memory_check.h"
#include "train/sentence_folder.h"
#include "train/setup.h"

namespace megalith {

// A model for its states, and the whole of which it is a part, without storage: what a file of weights may have.
struct StatesModel {
  BuiltModel whole, built;
};

// Makes the run's plan one of the states: one pipeline stage, which ends with them. Call it once the configuration has
// been checked, before memory is estimated.
//   returns the whole model's plan
PipelinePlan plan_states(Resolved& resolved, bool has_pooler);

// resolved has the plan that plan_states() made; whole is what it returned.
StatesModel build_states_model(Resolved& resolved, const PipelinePlan& whole, const Groups& groups, at::Device device);

// What a rank holds while it reads `rows` texts of `length` tokens.
MemoryMeasure estimate_vectors(int64_t rows, int64_t length);

// (b, longest) int64 ids on the CPU, and how many of each row are the text's, (b). Padding may be any id.
struct PaddedTexts {
  at::Tensor tokens, lengths;
};
// The texts of these numbers.
PaddedTexts padded_texts(std::span<const std::vector<int32_t>> texts, std::span<const int64_t> rows);
// As a model reads them outside of training.
//   has_encoder  beside a decoder: they are the encoder's
ModelInput input_of_texts(const PaddedTexts& texts, bool has_encoder, at::Device device);

struct VectorSettings {
  Pooling pooling = Pooling::kMean;
  bool normalise = false;
  int64_t rows = 32;  // texts that go through the model together
};

// The ids of each text, at least one -> (texts, h) fp32 on the CPU, on every rank. Data-parallel ranks share the texts.
// on_done is called with how many texts all ranks have finished since the last call.
at::Tensor text_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> texts,
                        const VectorSettings& settings, const Groups& groups, at::Device device,
                        const std::function<void(int64_t)>& on_done = {});

// states (b, s, h), lengths (b) int64 on the CPU -> (b, h) fp32
at::Tensor pooled_states(const at::Tensor& states, const at::Tensor& lengths, Pooling pooling);

}  // namespace megalith
