// The arrays of Megatron's GPT data set (gpt_dataset.h), byte for byte: draws are NumPy's, from one stream. Source:
// megatron/core/datasets/gpt_dataset.py and helpers.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "data/index_array.h"
#include "data/split.h"

namespace megalith {

// Numbers of epochs and samples, and whether the last epoch is shuffled by itself: when little of it is used, its
// documents must not mix into earlier ones.
struct EpochPlan {
  int64_t num_epochs = 1;
  int64_t num_samples = 0;              // in all epochs
  int64_t num_samples_before_last = 0;  // before the last epoch
  bool is_last_separate = false;
};

// tokens_per_epoch   above 0
// wanted             samples asked for; nothing: one epoch
EpochPlan plan_epochs(int64_t tokens_per_epoch, int64_t sequence_length, std::optional<int64_t> wanted);

struct GptIndices {
  IndexArray document_index;  // (epochs · sequences)
  IndexArray sample_index;    // (samples + 1, 2): position in the document index, token offset
  IndexArray shuffle_index;   // (samples)
};

// lengths      of the sequences range.begin … range.end - 1, in tokens
// num_threads  any number gives the same arrays
GptIndices build_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                             int64_t sequence_length, uint32_t seed, int num_threads);

struct GptIndexFiles {
  std::filesystem::path document_index, sample_index, shuffle_index;
};
// Writes the arrays to files in turn: memory holds at most the longer of the document and sample orders, never the
// sample index. UserError when a file cannot be written.
void write_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                       int64_t sequence_length, uint32_t seed, int num_threads, const GptIndexFiles& files);

}  // namespace megalith
