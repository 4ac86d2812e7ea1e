// Megatron's GPT data set: the sequences of one split, shuffled and joined epoch after epoch, cut into samples of
// sequence_length + 1 tokens that overlap by one, and the samples shuffled. The order is Megatron's to the bit.
//
// Three arrays say what sample i is: the document index (which sequence comes n-th), the sample index (where the j-th
// sample begins: a position in the document index and an offset in tokens), and the shuffle index (j for i).
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

// Builds the three arrays for sequences [range.begin, range.end). UserError when the range holds no token.
GptIndices build_gpt_indices(const TokenSource& source, ElementRange range, const GptDatasetOptions& options);

// What is said before an index is built that takes more than some seconds: what is put in order, and about how long
// that takes. Empty for others.
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
