// See context_shard.h.
#include "data/context_shard.h"

#include <ATen/ATen.h>

#include "comm/sequence_shard.h"
#include "core/error.h"

namespace megalith {

Batch shard_batch(const Batch& batch, int cp_size, int cp_rank) {
  if (cp_size == 1) return batch;
  MEGALITH_CHECK(batch.row_length == 0, "a part of rows of {} is to be cut again", batch.row_length);
  Batch part = batch;
  for (at::Tensor Batch::*member :
       {&Batch::tokens, &Batch::labels, &Batch::loss_weights, &Batch::position_ids, &Batch::document_ids}) {
    if ((batch.*member).defined()) part.*member = zigzag_shard(batch.*member, 1, cp_size, cp_rank);
  }
  part.row_length = batch.tokens.size(1);
  part.row_index = zigzag_indices(part.row_length, cp_size, cp_rank);
  part.row_document_ids = batch.document_ids;
  // Counted over the whole row, where the model would count from 0.
  if (!part.position_ids.defined()) part.position_ids = part.row_index.expand({part.tokens.size(0), -1});
  return part;
}

Batch shard_batch(const Batch& batch, const Group& cp) { return shard_batch(batch, cp.size(), cp.rank()); }

std::vector<Batch> shard_batches(const std::vector<Batch>& batches, const Group& cp) {
  std::vector<Batch> parts;
  parts.reserve(batches.size());
  for (const Batch& batch : batches) parts.push_back(shard_batch(batch, cp));
  return parts;
}

at::Tensor joined_tokens(const at::Tensor& part, Group& cp) {
  if (cp.size() == 1) return part;
  const at::Tensor all = cp.gathered(part.contiguous().to(cp.device()), "tokens of all parts");
  return zigzag_join(all.view({cp.size(), part.size(0), part.size(1)})).to(part.device());
}

}  // namespace megalith
