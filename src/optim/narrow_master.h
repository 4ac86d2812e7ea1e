// Masters narrower than 4 bytes: which slots have them, their fp32 values, and checkpoint form. Bit layout:
// ops/adamw/narrow_master.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/adamw/kernel.h"
#include "optim/optimizer_options.h"
#include "optim/stored_form.h"
#include "optim/update_rule.h"

namespace megalith {

// Narrow only for bf16 weights and rules that support it.
ops::MasterForm master_form(const UpdateRule& rule, at::ScalarType model, const OptimizerOptions& options);

// Weights in the gradient's dtype: the master, or decoded from its narrow form.
at::Tensor wide_master(const UpdateSlot& slot);

void reset_master(const UpdateSlot& slot);

// For slots with a remainder: the master, and the state that carries its sign, as in checkpoints.
StoredForm stored_master(const UpdateSlot& slot);
StoredForm stored_square(const UpdateSlot& slot);

}  // namespace megalith
