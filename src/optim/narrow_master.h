// Masters in less than 4 bytes, as the optimizer keeps them: which slots have them, what they stand for, and how
// checkpoints, which hold fp32 masters, read and fill them. What the bits mean: ops/adamw/narrow_master.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/adamw/kernel.h"
#include "optim/optimizer_options.h"
#include "optim/stored_form.h"
#include "optim/update_rule.h"

namespace megalith {

// What stands beside a weight of this dtype: narrow only for bf16, and for rules that know narrow masters.
ops::MasterForm master_form(const UpdateRule& rule, at::ScalarType model, const OptimizerOptions& options);

// The slot's weights in the dtype of the gradient: the master, or what its narrow form says. A copy where it is narrow.
at::Tensor wide_master(const UpdateSlot& slot);

// The master becomes the model's weight.
void reset_master(const UpdateSlot& slot);

// A slot with a remainder: its master, and the state whose sign is a part of the master, as checkpoints hold them.
StoredForm stored_master(const UpdateSlot& slot);
StoredForm stored_square(const UpdateSlot& slot);

}  // namespace megalith
