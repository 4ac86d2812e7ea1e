// Batches; see batch_source.h. Masks and positions: megatron/core/datasets/gpt_dataset.py.
#include "data/batch_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <mutex>

#include "core/error.h"
#include "data/balance.h"

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
    // The end token still belongs to its document.
    if (is_eod && options.reset_position_ids) position = 0;
    if (is_eod) ++document;
  }
}

// The step that was shared last.
struct BatchSource::Balanced {
  std::mutex mutex;
  DataPosition step;
  std::vector<PlacedRow> rows;  // in the data's order
  std::vector<int64_t> shares;  // balanced_shares() of the rows
};

BatchSource::BatchSource(std::shared_ptr<RowReader> rows, Order order)
    : rows_(std::move(rows)), order_(std::move(order)) {}
BatchSource::~BatchSource() = default;

void BatchSource::balance() { balanced_ = std::make_unique<Balanced>(); }

std::vector<PlacedRow> BatchSource::placed_rows(const DataPosition& position) const {
  if (balanced_ == nullptr || position.step_samples == 0) return order_.rows(position);
  Balanced& last = *balanced_;
  const std::lock_guard lock(last.mutex);
  DataPosition step = position;
  step.consumed_samples = step.step_first, step.dp_rank = 0;
  if (step != last.step || last.rows.empty()) {
    last.step = step;
    last.rows = order_.rows({.consumed_samples = step.step_first, .micro_batch_size = step.step_samples});
    std::vector<double> work;
    for (const PlacedRow& row : last.rows) work.push_back(rows_->work(row.row));
    last.shares = balanced_shares(work, step.dp_size, step.micro_batch_size);
  }
  const int64_t chunk = position.micro_batch_size * position.dp_size;
  const int64_t microbatch = (position.consumed_samples - position.step_first) / chunk;
  const int64_t first = (position.dp_rank * (position.step_samples / chunk) + microbatch) * position.micro_batch_size;
  std::vector<PlacedRow> rows;
  for (int64_t i = first; i < first + position.micro_batch_size; ++i) {
    rows.push_back(last.rows.at(static_cast<size_t>(last.shares.at(static_cast<size_t>(i)))));
  }
  return rows;
}

void BatchSource::then(std::function<void(Batch&)> change) { changes_.push_back(std::move(change)); }

Batch BatchSource::read(const DataPosition& position) const {
  std::vector<int64_t> numbers, places;
  for (const PlacedRow& row : placed_rows(position)) {
    numbers.push_back(row.row);
    places.push_back(row.place);
  }
  Batch batch = rows_->read(numbers);
  batch.set(BatchField::of_rows(field::kSampleIndex, at::tensor(places, at::kLong)));
  for (const auto& change : changes_) change(batch);
  return batch;
}

Batch SampleRows::read(std::span<const int64_t> rows) const {
  const at::Tensor numbers = at::empty({std::ssize(rows), size_}, at::kLong);
  auto* out = numbers.mutable_data_ptr<int64_t>();
  for (const int64_t row : rows) {
    samples_->read(row, {out, static_cast<size_t>(size_)});
    out += size_;
  }
  return to_batch_(numbers);
}

std::shared_ptr<RowReader> make_text_rows(std::unique_ptr<SampleSource> samples, const BatchOptions& options) {
  if ((options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss) && !options.eod) {
    throw UserError("reset_position_ids, reset_attention_mask and eod_mask_loss need the end-of-document id",
                    "give --tokenizer_model, or a preset that names the id");
  }
  const int64_t size = options.sequence_length + 1;
  return std::make_shared<SampleRows>(std::move(samples), size, [=](const at::Tensor& samples_bs) {
    Batch batch = make_batch(samples_bs.size(0), options);
    for (int64_t row = 0; row < samples_bs.size(0); ++row) {
      const int64_t* sample = samples_bs.const_data_ptr<int64_t>() + row * size;
      fill_batch_row(batch, row, {sample, static_cast<size_t>(size)}, options);
    }
    return batch;
  });
}

}  // namespace megalith
