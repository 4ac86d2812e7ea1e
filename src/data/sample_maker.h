// Kinds of samples: what data_sets.h must know to open, split and blend data of one kind.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/log.h"
#include "data/batch_source.h"
#include "data/split.h"
#include "data/token_source.h"

namespace megalith {

// The samples of one split of one source that are asked for.
struct SampleRequest {
  Split split = Split::kTrain;
  std::string split_text;              // as the user wrote it; empty: the source is used whole
  std::optional<int64_t> num_samples;  // nothing: one epoch
  uint32_t seed = 1234;
  int64_t sequence_length = 0;
  bool is_mock = false;
  std::optional<std::filesystem::path> cache_folder;
};

class SampleMaker {
 public:
  virtual ~SampleMaker() = default;

  // megatron-core's name of such a data set, which its index files bear.
  virtual std::string_view class_name() const = 0;
  // What a split divides, and a request's range counts: sequences or documents.
  virtual int64_t num_elements(const TokenSource& source) const = 0;
  // UserError when mock data cannot be made.
  virtual std::unique_ptr<TokenSource> make_mock() const = 0;
  // Called from several threads.
  virtual std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                             const SampleRequest& request, Logger& log) const = 0;
  virtual std::unique_ptr<BatchSource> batches_of(std::unique_ptr<SampleSource> samples, Sampler sampler) const = 0;
};

}  // namespace megalith
