// The three arrays of Megatron's GPT data set (gpt_dataset.h): how many epochs there are, the order of documents, where
// samples begin, the order of samples. All draws are NumPy's, from one stream, so the arrays are Megatron's byte for
// byte. Source: megatron/core/datasets/gpt_dataset.py and helpers.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "data/index_array.h"
#include "data/split.h"

namespace megalith {

// How many epochs, how many samples, and whether the last epoch is shuffled by itself (when little of it is used, so
// that its documents do not mix into the earlier ones).
struct EpochPlan {
  int64_t num_epochs = 1;
  int64_t num_samples = 0;              // all that the epochs give
  int64_t num_samples_before_last = 0;  // of them before the last epoch
  bool is_last_separate = false;
};

// tokens_per_epoch   above 0
// wanted             samples that are asked for; nothing: one epoch
EpochPlan plan_epochs(int64_t tokens_per_epoch, int64_t sequence_length, std::optional<int64_t> wanted);

struct GptIndices {
  IndexArray document_index;  // (epochs · sequences)
  IndexArray sample_index;    // (samples + 1, 2): a position in the document index, and an offset in tokens
  IndexArray shuffle_index;   // (samples)
};

// lengths      of the sequences range.begin … range.end - 1, in tokens
// num_threads  that may work; 1 and more give the same arrays
GptIndices build_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                             int64_t sequence_length, uint32_t seed, int num_threads);

struct GptIndexFiles {
  std::filesystem::path document_index, sample_index, shuffle_index;
};
// Writes the same arrays to files, one after the other: in memory there are the order of documents or that of samples,
// whichever is longer, and never the sample index. UserError when a file cannot be written.
void write_gpt_indices(std::span<const int32_t> lengths, ElementRange range, const EpochPlan& plan,
                       int64_t sequence_length, uint32_t seed, int num_threads, const GptIndexFiles& files);

}  // namespace megalith
