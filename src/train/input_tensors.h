// Visits every named input tensor of a microbatch, to copy all or order their use. Some may be undefined.
#pragma once

#include <string_view>

#include "models/model.h"

namespace megalith {

template <typename Input, typename Visit>
void for_each_tensor(Input& input, const Visit& visit) {
  visit("tokens", input.tokens);
  visit("labels", input.labels);
  visit("loss_weights", input.loss_weights);
  auto& context = input.context;
  visit("position_ids", context.position_ids);
  visit("row_ids", context.row_ids);
  auto& mask = context.mask;
  visit("query_positions", mask.query_positions);
  visit("key_positions", mask.key_positions);
  visit("query_documents", mask.query_documents);
  visit("key_documents", mask.key_documents);
  visit("key_lengths", mask.key_lengths);
  visit("bias", mask.bias);
  for (auto& [name, tensor] : input.more.tensors) visit(name, tensor);
  if (input.preference) {
    visit("reference_log_probs", input.preference->reference);
    visit("num_pairs", input.preference->num_pairs);
    if (input.preference->ratings) {
      visit("rating_signs", input.preference->ratings->signs);
      visit("kl", input.preference->ratings->kl);
    }
  }
  if (input.sets) visit("set_ids", input.sets->ids);
  for (auto& term : input.terms) visit(term.name, term.per_weight);
}

}  // namespace megalith
