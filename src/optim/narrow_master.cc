#include "optim/narrow_master.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/adamw/narrow_master.h"
#include "optim/adamw.h"

namespace megalith {

ops::MasterForm master_form(const UpdateRule& rule, at::ScalarType model, const OptimizerOptions& options) {
  if (model != at::kBFloat16 || !rule.takes_narrow_masters()) return ops::MasterForm::kWhole;
  switch (options.master_weights) {
    case MasterWeights::kFp32:
      return ops::MasterForm::kWhole;
    case MasterWeights::kRemainder:
      return ops::MasterForm::kRemainder;
    case MasterWeights::kNone:
      return ops::MasterForm::kNone;
  }
  MEGALITH_CHECK(false, "a form of masters without a case");
}

at::Tensor wide_master(const UpdateSlot& slot) {
  if (slot.master.defined()) return slot.master;
  if (!slot.remainder.defined()) return slot.model.to(slot.part->parameter->wide_dtype());
  return ops::join_master(slot.model.to(slot.remainder.device()), slot.remainder, slot.state[AdamwRule::kExpAvgSq]);
}

void reset_master(const UpdateSlot& slot) {
  if (slot.part->grad.is_meta()) return;  // shapes only, as in memory estimates
  if (slot.remainder.defined()) {
    at::Tensor(slot.remainder).zero_();
    at::Tensor(slot.state[AdamwRule::kExpAvgSq]).abs_();
  } else if (slot.master.defined() && slot.model.defined()) {
    slot.master.copy_(slot.model);
  }
}

StoredForm stored_master(const UpdateSlot& slot) {
  return {.dtype = at::kFloat,
          .parts = {slot.model, slot.remainder, slot.state[AdamwRule::kExpAvgSq]},
          .join = [](const std::vector<at::Tensor>& p) {
            return ops::join_master(p[0].to(p[1].device()), p[1], p[2]);  // the rest may be in host memory
          },
          .split = [](const at::Tensor& stored, const std::vector<at::Tensor>& p) {
            const at::Tensor weight = p[0].to(p[1].device());
            ops::split_master(stored, weight, p[1], p[2]);
            if (!weight.is_same(p[0])) p[0].copy_(weight);
          }};
}

StoredForm stored_square(const UpdateSlot& slot) {
  const at::Tensor& square = slot.state[AdamwRule::kExpAvgSq];
  return {.dtype = square.scalar_type(),
          .parts = {square},
          .join = [](const std::vector<at::Tensor>& p) { return p[0].abs(); },
          .split = [](const at::Tensor& stored,
                      const std::vector<at::Tensor>& p) { p[0].copy_(at::where(at::signbit(p[0]), -stored, stored)); }};
}

}  // namespace megalith
