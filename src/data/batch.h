// What a model is fed: named tensors of a number of rows. Each field says which of its dims counts rows and which runs
// along the sequence, so that taking rows, taking the part of a context-parallel rank and copying to a device are
// written once, whatever a data set gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megalith {

// The fields of texts. b rows of s tokens.
namespace field {

// (b, s) int64: the input tokens.
inline constexpr std::string_view kTokens = "tokens";
// (b, s) int64: what is to be predicted at each token; the token after it, for a model of the next token.
inline constexpr std::string_view kLabels = "labels";
// (b, s) float32: 1 where the label counts in the loss, 0 at padding and, with eod_mask_loss, where the input token
// ends a document.
inline constexpr std::string_view kLossWeights = "loss_weights";
// (b, s) int64: positions for the rotary or learned embedding, 0 … s-1; with reset_position_ids they start anew
// behind each end of a document. Absent: 0 … s-1.
inline constexpr std::string_view kPositionIds = "position_ids";
// (b, s) int32: number of the document within the row, counted from 0; a token attends only to tokens of its own
// document. Absent unless reset_attention_mask is set: then the row is one document.
inline constexpr std::string_view kDocumentIds = "document_ids";
// (b) int64: tokens of a row that are not padding at its end. Absent: all.
inline constexpr std::string_view kKeyLengths = "key_lengths";
// (b, s) float32: the log-probability that a reference model gives the label, of labels that count. Pairs of answers.
inline constexpr std::string_view kReferenceLogProbs = "reference_log_probs";
// (b) int64: pairs of answers in the row. Documents 2 k and 2 k + 1 are the chosen and the rejected one of pair k.
inline constexpr std::string_view kNumPairs = "num_pairs";
// (b) int64: the row's place in the order of training, counted over the whole run (samples consumed before this step
// plus the place in the global batch). The same under every layout; what is drawn for a row is keyed by it. Every
// batch has it, whatever its data are.
inline constexpr std::string_view kSampleIndex = "sample_index";

}  // namespace field

struct BatchField {
  std::string name;
  at::Tensor tensor;
  std::optional<int64_t> row_dim;       // none: the same for all rows
  std::optional<int64_t> sequence_dim;  // context parallelism cuts it; none: every rank has the whole
  bool keeps_whole = false;             // a part has the whole beside it, as attention's keys need it; Batch::whole()

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
  // Behind the others, or in the place of the one of this name.
  void set(BatchField field);
  // Another tensor for a field that is there.
  void set(std::string_view name, at::Tensor tensor);

  // The tensor of this name; a copy of the handle, as tensors are.
  at::Tensor at(std::string_view name) const;    // InternalError when absent
  at::Tensor find(std::string_view name) const;  // undefined when absent
  bool has(std::string_view name) const { return find_field(name) != nullptr; }
  const std::vector<BatchField>& fields() const { return fields_; }

  // InternalError in a batch that has no field with rows.
  int64_t num_rows() const;
  // Rows [begin, begin + count), in memory of their own.
  Batch rows(int64_t begin, int64_t count) const;

  // What rank `rank` of `size` context-parallel ranks computes with: the zig-zag chunks (comm/sequence_shard.h) of
  // every field with a sequence, each of its own length, and all of the other fields. One rank: the batch as it is.
  // All ranks of the group read the same whole rows and each takes its own. InternalError when 2 size does not divide a
  // sequence, or the batch is a part already.
  Batch part(int size, int rank) const;
  Batch part(const Group& cp) const { return part(cp.size(), cp.rank()); }
  bool is_part() const { return part_size_ > 1; }
  // Tokens that this rank has of the field's sequence, those of the whole rows, and (s) int64, ascending, which of them
  // these are.
  int64_t length(std::string_view name) const;
  int64_t row_length(std::string_view name) const { return length(name) * part_size_; }
  at::Tensor row_index(std::string_view name) const;
  // The field over the whole rows: of a part, the copy that keeps_whole asked for; otherwise at(name).
  at::Tensor whole(std::string_view name) const;

  // Only these fields, those that are there, on the device. From host memory to a GPU the copies are pinned and do not
  // wait: they are ordered before what the current stream does next.
  Batch to(at::Device device, std::span<const std::string_view> names) const;

 private:
  const BatchField* find_field(std::string_view name) const;

  std::vector<BatchField> fields_;
  std::vector<BatchField> wholes_;  // of a part
  int part_size_ = 1, part_rank_ = 0;
};

std::vector<Batch> parts_of(const std::vector<Batch>& batches, const Group& cp);

// Something of every token of a part (b, s) to that of the whole rows (b, S), the same on all ranks of the group.
at::Tensor joined_tokens(const at::Tensor& part, Group& cp);

}  // namespace megalith
