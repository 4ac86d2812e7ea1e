// Batches of records: samples that are more than one text. A sample is one run of numbers (sample_source.h), and a list
// says which of them are which field of a batch.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "data/batch_source.h"

namespace megalith {

struct RecordField {
  enum class Form {
    kTokens,   // (b, size), along a sequence
    kNumbers,  // (b, size), which nothing cuts
    kNumber,   // (b)
  };
  std::string_view name;
  Form form = Form::kTokens;
  int64_t size = 1;
  bool is_weight = false;  // float32; else int64
};

// Numbers of a record of these fields, which lie behind one another.
int64_t record_size(const std::vector<RecordField>& fields);

class RecordBatchSource : public BatchSource {
 public:
  RecordBatchSource(std::unique_ptr<SampleSource> samples, Sampler sampler, std::vector<RecordField> fields);

  // The fields, and sample_index.
  Batch read(const DataPosition& position) override;
  int64_t num_samples() const override { return samples_->num_samples(); }
  std::string name() const override { return samples_->name(); }
  std::optional<DataSize> data_size() const override { return samples_->size(); }

 private:
  std::unique_ptr<SampleSource> samples_;
  std::mutex sampler_mutex_;  // a cyclic sampler keeps the permutation of its epoch
  Sampler sampler_;
  std::vector<RecordField> fields_;
};

}  // namespace megalith
