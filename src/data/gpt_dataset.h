// Megatron's GPT data set: a split's sequences, shuffled by epoch and joined, cut into samples of sequence_length + 1
// tokens that overlap by one; samples are shuffled. Order is Megatron's, bit for bit.
//
// Three arrays define sample i: document index (sequences in order), sample index (start of sample j: position in the
// document index, token offset), shuffle index (j of i).
// Source: megatron/core/datasets/gpt_dataset.py and helpers.cpp.
#pragma once

#include <memory>
#include <optional>

#include "core/log.h"
#include "data/gpt_indices.h"
#include "data/sample_source.h"
#include "data/token_source.h"

namespace megalith {

struct GptDatasetOptions : SampleRequest {
  int64_t vocab_size = INT64_MAX;  // ids at or above it are errors; padded sizes are fine
};

// Builds the arrays for sequences [range.begin, range.end). UserError when the range holds no token.
GptIndices build_gpt_indices(const TokenSource& source, ElementRange range, const GptDatasetOptions& options);

// Notice before an index that takes more than seconds to build: its size and about how long. Empty for others.
std::string index_notice(const std::string& name, int64_t documents, int64_t samples);

class GptDataset final : public SampleSource {
 public:
  GptDataset(std::shared_ptr<const TokenSource> source, ElementRange range, GptDatasetOptions options, Logger& log);

  int64_t num_samples() const override { return indices_.shuffle_index.rows(); }
  void read(int64_t index, std::span<int64_t> out) const override;
  std::string name() const override { return source_->name(); }
  std::string identity() const override { return identity_; }
  std::optional<DataSize> size() const override { return size_; }
  const GptIndices& indices() const { return indices_; }

 private:
  std::shared_ptr<const TokenSource> source_;
  GptDatasetOptions options_;
  std::string identity_;
  std::optional<DataSize> size_;
  GptIndices indices_;
};

}  // namespace megalith
