// Batches for one split: an order (order.h) picks rows, a reader makes their fields.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/batch.h"
#include "data/order.h"
#include "data/sample_source.h"

namespace megalith {

class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual int64_t num_rows() const = 0;
  virtual std::string name() const = 0;
  // Read by one pass; nothing if unknown.
  virtual std::optional<DataSize> size() const { return std::nullopt; }
  // A row's cost beside other rows, in any unit: pairs of queries and keys. Thread-safe.
  virtual double work(int64_t /*row*/) const { return 1; }
  // These rows, on the CPU; all fields but sample_index. Thread-safe.
  virtual Batch read(std::span<const int64_t> rows) const = 0;
};

class BatchSource {
 public:
  BatchSource(std::shared_ptr<RowReader> rows, Order order);
  ~BatchSource();

  // Adds a change to every batch, after earlier ones: a task's random draws. Called from several threads.
  void then(std::function<void(Batch&)> change);

  // From now on a training step's rows are shared by their work (data/balance.h): the step keeps its rows and their
  // places, ranks and microbatches change hands.
  void balance();

  // This rank's rows of the microbatch at `position`, on the CPU. Depends only on the position. Thread-safe.
  Batch read(const DataPosition& position) const;
  // The rows that read() reads.
  std::vector<PlacedRow> placed_rows(const DataPosition& position) const;
  int64_t num_samples() const { return rows_->num_rows(); }
  std::string name() const { return rows_->name(); }
  std::optional<DataSize> data_size() const { return rows_->size(); }
  RowReader& rows() const { return *rows_; }

 private:
  struct Balanced;

  std::shared_ptr<RowReader> rows_;
  Order order_;
  std::unique_ptr<Balanced> balanced_;  // null: not balance()
  std::vector<std::function<void(Batch&)>> changes_;
};

struct BatchOptions {
  int64_t sequence_length = 0;
  std::optional<int64_t> eod;  // required by the three options below
  int64_t pad_id = -1;         // labels of this id have no loss
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
};

// Fills row `row` from one sample of s + 1 tokens. As in Megatron's data set padding becomes token 0 with weight 0.
void fill_batch_row(const Batch& batch, int64_t row, std::span<const int64_t> sample, const BatchOptions& options);
// Uninitialised tensors of the right shapes.
Batch make_batch(int64_t batch_size, const BatchOptions& options);

// Samples that are runs of `size` numbers.
class SampleRows final : public RowReader {
 public:
  using ToBatch = std::function<Batch(const at::Tensor& numbers)>;
  SampleRows(std::unique_ptr<SampleSource> samples, int64_t size, ToBatch to_batch)
      : samples_(std::move(samples)), size_(size), to_batch_(std::move(to_batch)) {}

  int64_t num_rows() const override { return samples_->num_samples(); }
  std::string name() const override { return samples_->name(); }
  std::optional<DataSize> size() const override { return samples_->size(); }
  Batch read(std::span<const int64_t> rows) const override;

 private:
  std::unique_ptr<SampleSource> samples_;
  int64_t size_;
  ToBatch to_batch_;
};

// Texts, labelled with the next tokens. UserError for options that need an end-of-document id if there is none.
std::shared_ptr<RowReader> make_text_rows(std::unique_ptr<SampleSource> samples, const BatchOptions& options);

}  // namespace megalith
