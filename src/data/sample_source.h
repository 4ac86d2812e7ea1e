// Numbered samples of one size, from a data set (gpt_dataset.h) or a blend (blend.h). A sample is a run of numbers: a
// text's tokens, or a record of named fields (record_source.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/split.h"

namespace megalith {

// Read by one pass over a data set or split.
struct DataSize {
  int64_t documents = 0, tokens = 0;
  std::optional<double> samples = std::nullopt;  // in one pass; nothing if samples vary in what they take
};

// Samples asked for of a split of one source.
struct SampleRequest {
  Split split = Split::kTrain;
  std::string split_text;              // as the user wrote it; empty: the source is used whole
  std::optional<int64_t> num_samples;  // nothing: one epoch
  uint32_t seed = 1234;
  int64_t sequence_length = 0;
  bool is_mock = false;
  std::optional<std::filesystem::path> cache_folder;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t num_samples() const = 0;
  // Writes sample `index` to out: of texts sequence_length + 1 tokens, padded at the end with the padding id. UserError
  // for ids outside the vocabulary and damaged index files. Thread-safe.
  virtual void read(int64_t index, std::span<int64_t> out) const = 0;
  virtual std::string name() const = 0;
  // Nothing if unknown, or for mock data.
  virtual std::optional<DataSize> size() const { return std::nullopt; }
  // Determines the order: megatron-core's JSON description (without the tokenizer), or empty.
  virtual std::string identity() const { return {}; }
};

}  // namespace megalith
