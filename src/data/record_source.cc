// See record_source.h.
#include "data/record_source.h"

#include <ATen/ATen.h>

#include <numeric>

namespace megalith {

int64_t record_size(const std::vector<RecordField>& fields) {
  return std::accumulate(fields.begin(), fields.end(), int64_t{0},
                         [](int64_t sum, const RecordField& field) { return sum + field.size; });
}

RecordBatchSource::RecordBatchSource(std::unique_ptr<SampleSource> samples, Sampler sampler,
                                     std::vector<RecordField> fields)
    : samples_(std::move(samples)), sampler_(std::move(sampler)), fields_(std::move(fields)) {}

Batch RecordBatchSource::read(const DataPosition& position) {
  std::vector<SampleRow> rows;
  {
    const std::lock_guard lock(sampler_mutex_);
    rows = sampler_.rows(position);
  }
  const int64_t b = std::ssize(rows), size = record_size(fields_);
  const at::Tensor records = at::empty({b, size}, at::kLong), order = at::empty({b}, at::kLong);
  auto* out = records.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < b; ++row, out += size) {
    const SampleRow& from = rows[static_cast<size_t>(row)];
    samples_->read(from.sample, {out, static_cast<size_t>(size)});
    order.mutable_data_ptr<int64_t>()[row] = from.in_order;
  }
  Batch batch;
  int64_t begin = 0;
  for (const RecordField& field : fields_) {
    at::Tensor part = records.narrow(1, begin, field.size).to(field.is_weight ? at::kFloat : at::kLong);
    begin += field.size;
    switch (field.form) {
      case RecordField::Form::kTokens:
        batch.set(BatchField::of_tokens(field.name, part.contiguous()));
        break;
      case RecordField::Form::kNumbers:
        batch.set(BatchField::of_rows(field.name, part.contiguous()));
        break;
      case RecordField::Form::kNumber:
        batch.set(BatchField::of_rows(field.name, part.squeeze(1).contiguous()));
        break;
    }
  }
  batch.set(BatchField::of_rows(field::kSampleIndex, order));
  return batch;
}

}  // namespace megalith
