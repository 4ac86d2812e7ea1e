// Whether documents that share a row touch: with reset_attention_mask, losses and gradients of a document must not
// depend on the tokens of another one, to the bit.
//
// One document of every row carries no loss. A step's losses and gradients are then those of the others, and must be
// the same bits whatever its tokens are. Experts compute tokens in groups, whose sizes follow from the tokens of all
// documents, and products of other sizes may be summed in another order: there rounding errors are allowed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "verify/check_batch.h"
#include "verify/layout_check.h"

namespace megalith {

// Turns off what makes tokens depend on one another by design: losses of balance, Sinkhorn's assignment, capacities.
void uncouple_tokens(ModelConfig& config);

// What differs between the losses, gradient norms and gradients of two runs of one rank, in one line; or nothing.
//   tolerance  largest relative difference of numbers, and of tensors by their largest element; 0: no bit differs
std::string find_difference(const RankOutcome& first, const RankOutcome& second, double tolerance);

// The tolerance for a model in this dtype: 0 without experts.
double document_tolerance(bool has_experts, at::ScalarType dtype);

// The first failure in one line, or nothing.
//   run         one step over batches in which this document is silent: outcomes of the ranks first_rank, …
//   first_rank  for the message
std::string find_touching_documents(const std::function<std::vector<RankOutcome>(const SilentDocument&)>& run,
                                    int first_rank, double tolerance);

}  // namespace megalith
