// Batches for one split of the data: from a place in the run to the tensors that a data-parallel rank feeds its model.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "data/batch.h"
#include "data/sample_source.h"
#include "data/sampler.h"

namespace megalith {

struct BatchOptions {
  int64_t sequence_length = 0;
  std::optional<int64_t> eod;  // needed by the three options below
  int64_t pad_id = -1;         // such labels carry no loss
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
};

// Fills row `row` of the batch's tensors from one sample of s + 1 tokens. What Megatron's dataset returns: padding
// becomes token 0 with weight 0.
void fill_batch_row(const Batch& batch, int64_t row, std::span<const int64_t> sample, const BatchOptions& options);
// Tensors of the right shapes; contents undefined.
Batch make_batch(int64_t batch_size, const BatchOptions& options);

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // This rank's rows of the microbatch at `position`, on the CPU. Depends only on the position: calls may come in any
  // order, and from several threads.
  virtual Batch read(const DataPosition& position) = 0;
  virtual int64_t num_samples() const = 0;
  virtual std::string name() const = 0;
  // What one pass reads; nothing where that is not known.
  virtual std::optional<DataSize> data_size() const { return std::nullopt; }
};

// Rows of tokens, whose labels are the next tokens.
class TokenBatchSource : public BatchSource {
 public:
  // UserError for options that need an end of document where there is none.
  TokenBatchSource(std::unique_ptr<SampleSource> samples, Sampler sampler, BatchOptions options);

  Batch read(const DataPosition& position) override;
  int64_t num_samples() const override { return samples_->num_samples(); }
  std::string name() const override { return samples_->name(); }
  std::optional<DataSize> data_size() const override { return samples_->size(); }

 private:
  std::unique_ptr<SampleSource> samples_;
  std::mutex sampler_mutex_;  // a cyclic sampler keeps the permutation of its epoch
  Sampler sampler_;
  BatchOptions options_;
};

}  // namespace megalith
