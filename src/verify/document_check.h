// Checks that documents sharing a row do not interact: with reset_attention_mask, a document's losses and gradients
// must not depend on another's tokens, to the bit.
//
// One silent document per row carries no loss, so its tokens must change nothing. Experts compute tokens in groups
// sized by all documents, and products of other sizes may sum in another order: there, rounding errors are allowed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "verify/check_batch.h"
#include "verify/layout_check.h"

namespace megalith {

// Disables intentional coupling of tokens: balance losses, Sinkhorn's assignment, capacities.
void uncouple_tokens(ModelConfig& config);

// The differences between two runs of one rank, in losses, gradient norms and gradients, in one line; or nothing.
//   tolerance  relative, of tensors to their largest element; 0: bitwise
std::string find_difference(const RankOutcome& first, const RankOutcome& second, double tolerance);

// For a model of this dtype: 0 without experts.
double document_tolerance(bool has_experts, at::ScalarType dtype);

// The first failure in one line, or nothing.
//   run         one step over batches in which this document is silent: outcomes of the ranks first_rank, …
//   first_rank  for the message
std::string find_touching_documents(const std::function<std::vector<RankOutcome>(const SilentDocument&)>& run,
                                    int first_rank, double tolerance);

}  // namespace megalith
