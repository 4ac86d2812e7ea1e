// A model's input: named tensors with rows. Fields declare their row and sequence dims, so taking rows, splitting for
// context parallelism and copying to a device are written once for all data sets.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megalith {

namespace field {

// (b, s) int64: input tokens.
inline constexpr std::string_view kTokens = "tokens";
// (b, s) int64: target of each token; the next token, for next-token prediction.
inline constexpr std::string_view kLabels = "labels";
// (b, s) float32: 1 where the label counts, 0 at padding and, with eod_mask_loss, at input tokens that end a document.
inline constexpr std::string_view kLossWeights = "loss_weights";
// (b, s) int64: positions, 0 … s-1; reset_position_ids restarts them after each end of document. Absent: 0 … s-1.
inline constexpr std::string_view kPositionIds = "position_ids";
// (b, s) int32: document number within the row, from 0; tokens attend only within their document. Absent unless
// reset_attention_mask: each row is one document.
inline constexpr std::string_view kDocumentIds = "document_ids";
// (b) int64: tokens before a row's trailing padding. Absent: all.
inline constexpr std::string_view kKeyLengths = "key_lengths";
// (b, s) float32: a reference model's log-probability of each label that counts. Answer pairs.
inline constexpr std::string_view kReferenceLogProbs = "reference_log_probs";
// (b) int64: answer pairs in the row. Documents 2 k and 2 k + 1 are pair k's chosen and rejected answers.
inline constexpr std::string_view kNumPairs = "num_pairs";
// (b) int64: the data set that the row is of, if several are told apart.
inline constexpr std::string_view kSetIds = "set_ids";
// (b) int64: the row's place in the run (samples consumed before this step plus place in the global batch). Independent
// of layout; keys random draws for the row. Present in every batch.
inline constexpr std::string_view kSampleIndex = "sample_index";

}  // namespace field

struct BatchField {
  std::string name;
  at::Tensor tensor;
  std::optional<int64_t> row_dim;       // none: the same for all rows
  std::optional<int64_t> sequence_dim;  // split by context parallelism; none: every rank has the whole
  bool keeps_whole = false;             // parts keep the whole too, as attention's keys need; Batch::whole()

  // (b, s, …)
  static BatchField of_tokens(std::string_view name, at::Tensor tensor) {
    return {.name = std::string(name), .tensor = std::move(tensor), .row_dim = 0, .sequence_dim = 1};
  }
  // (b, …), without a sequence
  static BatchField of_rows(std::string_view name, at::Tensor tensor) {
    return {.name = std::string(name), .tensor = std::move(tensor), .row_dim = 0, .sequence_dim = {}};
  }
};

class Batch {
 public:
  // Appends, or replaces the field of this name.
  void set(BatchField field);
  // Replaces an existing field's tensor.
  void set(std::string_view name, at::Tensor tensor);

  at::Tensor at(std::string_view name) const;    // InternalError when absent
  at::Tensor find(std::string_view name) const;  // undefined when absent
  bool has(std::string_view name) const { return find_field(name) != nullptr; }
  const std::vector<BatchField>& fields() const { return fields_; }

  // InternalError if no field has rows.
  int64_t num_rows() const;
  // Rows [begin, begin + count), copied.
  Batch rows(int64_t begin, int64_t count) const;

  // The part of context-parallel rank `rank` of `size`: zig-zag chunks (comm/sequence_shard.h) of each field with a
  // sequence, by its own length; other fields whole. One rank: the batch itself. All ranks of the group must hold the
  // same whole rows. InternalError when 2 size does not divide a sequence, or the batch is already a part.
  Batch part(int size, int rank) const;
  Batch part(const Group& cp) const { return part(cp.size(), cp.rank()); }
  bool is_part() const { return part_size_ > 1; }
  // This rank's tokens in the field's sequence; the whole row's; and this rank's token indices in it, (s) int64,
  // ascending.
  int64_t length(std::string_view name) const;
  int64_t row_length(std::string_view name) const { return length(name) * part_size_; }
  at::Tensor row_index(std::string_view name) const;
  // The field over whole rows: a part's copy (keeps_whole), else at(name).
  at::Tensor whole(std::string_view name) const;

  // The named fields that exist, on the device. Host-to-GPU copies are pinned and asynchronous, ordered before later
  // work on the current stream.
  Batch to(at::Device device, std::span<const std::string_view> names) const;

 private:
  const BatchField* find_field(std::string_view name) const;

  std::vector<BatchField> fields_;
  std::vector<BatchField> wholes_;  // of a part
  int part_size_ = 1, part_rank_ = 0;
};

std::vector<Batch> parts_of(const std::vector<Batch>& batches, const Group& cp);

// Gathers per-token values of a part (b, s) to whole rows (b, S), the same on all ranks.
at::Tensor joined_tokens(const at::Tensor& part, Group& cp);

}  // namespace megalith
