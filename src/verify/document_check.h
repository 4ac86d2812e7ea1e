// Checks that documents sharing a row do not interact: with reset_attention_mask, a document's losses and gradients
// must not depend, to the bit, on another's tokens. Experts group tokens of all documents, and products of other sizes
// may sum in another order: there rounding may differ.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "verify/check_batch.h"
#include "verify/layout_check.h"

namespace megalith {

// Disables intended coupling: balance losses, Sinkhorn's assignment, capacities.
void uncouple_tokens(ModelConfig& config);

// Differences in losses, gradient norms and gradients, in one line, or "".
//   tolerance  relative to a tensor's largest element; 0: bitwise
std::string find_difference(const RankOutcome& first, const RankOutcome& second, double tolerance);

// 0 without experts.
double document_tolerance(bool has_experts, at::ScalarType dtype);

// The first failure in one line, or "".
//   run         a step with this document silent: outcomes of ranks first_rank, …
//   first_rank  for the message
std::string find_touching_documents(const std::function<std::vector<RankOutcome>(const SilentDocument&)>& run,
                                    int first_rank, double tolerance);

}  // namespace megalith
