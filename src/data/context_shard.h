// The part of a batch that a context-parallel rank computes with: every row's zig-zag chunks (comm/sequence_shard.h).
// All ranks of the group read the same whole rows and each takes its own.
#pragma once

#include <vector>

#include "comm/group.h"
#include "data/batch.h"

namespace megalith {

// tokens, labels, loss_weights, position_ids and document_ids cut along the sequence; sample_index stays; row_length,
// row_index and row_document_ids say where the part comes from. With one rank: the batch as it is.
// InternalError when 2 cp_size does not divide the sequence, or the batch is a part already.
Batch shard_batch(const Batch& batch, int cp_size, int cp_rank);

Batch shard_batch(const Batch& batch, const Group& cp);
std::vector<Batch> shard_batches(const std::vector<Batch>& batches, const Group& cp);

// Something of every token of a part (b, s) to that of the whole rows (b, S), the same on all ranks of the group.
at::Tensor joined_tokens(const at::Tensor& part, Group& cp);

}  // namespace megalith
