// torchtitan's names of parameters and their layouts, in terms of ours. Llama's queries and keys are stored with the
// channels of a rotated pair side by side; ours are half a head apart.
// Source: torchtitan, models/llama3/model/state_dict_adapter.py.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "foreign/canonical_model.h"
#include "foreign/foreign_tensor.h"

namespace megalith {

// Without places if the model has no such parameter. UserError for experts in a form that is not known.
ForeignLayout titan_layout(const CanonicalModel& model, std::string_view name);

// All that torchtitan's model of this kind has.
std::vector<std::pair<std::string, ForeignLayout>> titan_tensors(const CanonicalModel& model);

}  // namespace megalith
