// Batches; see batch_source.h. Masks and positions: megatron/core/datasets/gpt_dataset.py.
#include "data/batch_source.h"

#include <ATen/ops/empty.h>

#include "core/error.h"

namespace megalith {

Batch make_batch(int64_t batch_size, const BatchOptions& options) {
  const std::array<int64_t, 2> shape = {batch_size, options.sequence_length};
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, at::empty(shape, at::kLong)));
  batch.set(BatchField::of_tokens(field::kLabels, at::empty(shape, at::kLong)));
  batch.set(BatchField::of_tokens(field::kLossWeights, at::empty(shape, at::kFloat)));
  batch.set(BatchField::of_tokens(field::kPositionIds, at::empty(shape, at::kLong)));
  if (options.reset_attention_mask) {
    BatchField documents = BatchField::of_tokens(field::kDocumentIds, at::empty(shape, at::kInt));
    documents.keeps_whole = true;
    batch.set(std::move(documents));
  }
  batch.set(BatchField::of_rows(field::kSampleIndex, at::empty({batch_size}, at::kLong)));
  return batch;
}

void fill_batch_row(const Batch& batch, int64_t row, std::span<const int64_t> sample, const BatchOptions& options) {
  const int64_t s = options.sequence_length;
  MEGALITH_CHECK(static_cast<int64_t>(sample.size()) == s + 1, "{} tokens for a row of {} + 1", sample.size(), s);
  int64_t* tokens = batch.at(field::kTokens).mutable_data_ptr<int64_t>() + row * s;
  int64_t* labels = batch.at(field::kLabels).mutable_data_ptr<int64_t>() + row * s;
  int64_t* positions = batch.at(field::kPositionIds).mutable_data_ptr<int64_t>() + row * s;
  float* weights = batch.at(field::kLossWeights).mutable_data_ptr<float>() + row * s;
  int32_t* documents =
      options.reset_attention_mask ? batch.at(field::kDocumentIds).mutable_data_ptr<int32_t>() + row * s : nullptr;
  int64_t position = 0;
  int32_t document = 0;
  for (int64_t i = 0; i < s; ++i) {
    const int64_t token = sample[static_cast<size_t>(i)], label = sample[static_cast<size_t>(i + 1)];
    const bool is_eod = options.eod && token == *options.eod;
    positions[i] = position++;
    if (documents != nullptr) documents[i] = document;
    weights[i] = label == options.pad_id || (is_eod && options.eod_mask_loss) ? 0.0f : 1.0f;
    tokens[i] = token == options.pad_id ? 0 : token;
    labels[i] = label == options.pad_id ? 0 : label;
    // The end of a document still belongs to it; what follows does not.
    if (is_eod && options.reset_position_ids) position = 0;
    if (is_eod) ++document;
  }
}

TokenBatchSource::TokenBatchSource(std::unique_ptr<SampleSource> samples, Sampler sampler, BatchOptions options)
    : samples_(std::move(samples)), sampler_(std::move(sampler)), options_(options) {
  if ((options_.reset_position_ids || options_.reset_attention_mask || options_.eod_mask_loss) && !options_.eod) {
    throw UserError("reset_position_ids, reset_attention_mask and eod_mask_loss need the end-of-document id",
                    "give --tokenizer_model, or a preset that names the id");
  }
}

Batch TokenBatchSource::read(const DataPosition& position) {
  std::vector<SampleRow> rows;
  {
    const std::lock_guard lock(sampler_mutex_);
    rows = sampler_.rows(position);
  }
  std::vector<int64_t> sample(static_cast<size_t>(options_.sequence_length + 1));
  Batch batch = make_batch(static_cast<int64_t>(rows.size()), options_);
  int64_t* order = batch.at(field::kSampleIndex).mutable_data_ptr<int64_t>();
  for (size_t row = 0; row < rows.size(); ++row) {
    samples_->read(rows[row].sample, sample);
    fill_batch_row(batch, static_cast<int64_t>(row), sample, options_);
    order[row] = rows[row].in_order;
  }
  return batch;
}

}  // namespace megalith
