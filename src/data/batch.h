// What a model is fed: a few named tensors. b is the micro-batch size, s the sequence length.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith {

struct Batch {
  // (b, s) int64: the input tokens.
  at::Tensor tokens;
  // (b, s) int64: labels[i] is the token after tokens[i].
  at::Tensor labels;
  // (b, s) float32: 1 where the label counts in the loss, 0 at padding and, with eod_mask_loss, where the input token
  // ends a document.
  at::Tensor loss_weights;
  // (b, s) int64: positions for the rotary or learned embedding, 0 … s-1; with reset_position_ids they start anew
  // behind each end of a document.
  at::Tensor position_ids;
  // (b, s) int32: number of the document within the row, counted from 0; a token attends only to tokens of its own
  // document. Undefined unless reset_attention_mask is set: then the row is one document.
  at::Tensor document_ids;
  // (b) int64: the row's place in the order of training, counted over the whole run (samples consumed before this step
  // plus the place in the global batch). The same under every layout; dropout is keyed by it.
  at::Tensor sample_index;

  // Of a part of whole rows, as shard_batch() makes it for context parallelism: s tokens of rows of S. Not set in whole
  // rows.
  int64_t row_length = 0;       // S
  at::Tensor row_index;         // (s) int64, ascending: which tokens of the row these are
  at::Tensor row_document_ids;  // (b, S) int32: document_ids of the whole rows, which attention's keys need
};

}  // namespace megalith
