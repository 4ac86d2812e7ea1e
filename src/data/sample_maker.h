// Kinds of samples: what data_sets.h needs to open, split and blend each.
#pragma once

#include <memory>
#include <string_view>

#include "core/log.h"
#include "data/batch_source.h"
#include "data/token_source.h"

namespace megalith {

class SampleMaker {
 public:
  virtual ~SampleMaker() = default;

  // megatron-core's class name, used in its index files.
  virtual std::string_view class_name() const = 0;
  // Number of what splits and ranges count: sequences or documents.
  virtual int64_t num_elements(const TokenSource& source) const = 0;
  // UserError when mock data cannot be made.
  virtual std::unique_ptr<TokenSource> make_mock() const = 0;
  // Called from several threads.
  virtual std::unique_ptr<SampleSource> make(std::shared_ptr<const TokenSource> source, ElementRange range,
                                             const SampleRequest& request, Logger& log) const = 0;
  virtual std::shared_ptr<RowReader> rows_of(std::unique_ptr<SampleSource> samples) const = 0;
};

}  // namespace megalith
