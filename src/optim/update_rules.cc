#include "optim/update_rules.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "optim/adafactor.h"
#include "optim/adam8bit.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/narrow_master.h"
#include "optim/sgd.h"
#include "optim/state_layout.h"

namespace megalith {

at::Tensor UpdateStep::draft(const at::Tensor& kept) const { return is_made.defined() ? kept.clone() : kept; }

void UpdateStep::settle(const at::Tensor& kept, const at::Tensor& draft) const {
  if (is_made.defined()) kept.copy_(at::where(is_made, draft, kept));
}

namespace {

// For a weight that is not its own master.
size_t master_bytes(const UpdateRule& rule, at::ScalarType model, at::ScalarType wide,
                    const OptimizerOptions& options) {
  switch (master_form(rule, model, options)) {
    case ops::MasterForm::kWhole:
      return c10::elementSize(wide);
    case ops::MasterForm::kRemainder:
      return c10::elementSize(at::kShort);
    case ops::MasterForm::kNone:
      return 0;
  }
  MEGALITH_CHECK(false, "a form of masters without a case");
}

}  // namespace

std::vector<std::unique_ptr<UpdateRule>> make_update_rules(const OptimizerOptions& options, Kernels kernels) {
  std::vector<std::unique_ptr<UpdateRule>> rules;
  switch (options.optimizer) {
    case OptimizerKind::kAdam:
      break;
    case OptimizerKind::kSgd:
      rules.push_back(std::make_unique<SgdRule>(options));
      break;
    case OptimizerKind::kMuon:
      rules.push_back(std::make_unique<MuonRule>(options.muon));
      break;
    case OptimizerKind::kLion:
      rules.push_back(std::make_unique<LionRule>(options.lion));
      break;
    case OptimizerKind::kAdafactor:
      rules.push_back(std::make_unique<AdafactorRule>(options.adafactor));
      break;
    case OptimizerKind::kAdam8bit:
      rules.push_back(std::make_unique<Adam8bitRule>(options));
      break;
  }
  rules.push_back(std::make_unique<AdamwRule>(options, kernels));
  return rules;
}

size_t rule_of(const std::vector<std::unique_ptr<UpdateRule>>& rules, const Parameter& parameter) {
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i]->takes(parameter)) return i;
  }
  MEGALITH_CHECK(false, "no update rule takes {}", parameter.name());
}

BucketCutFunction bucket_cut(const OptimizerOptions& options) {
  // Shared, because a std::function is copied.
  const auto rules =
      std::make_shared<std::vector<std::unique_ptr<UpdateRule>>>(make_update_rules(options, Kernels::kReference));
  return [rules](const Parameter& parameter) {
    const bool wants_matrices =
        (*rules)[rule_of(*rules, parameter)]->granularity() == UpdateRule::Granularity::kMatrices;
    return wants_matrices ? BucketCut::kBetweenMatrices : BucketCut::kAnywhere;
  };
}

int64_t optimizer_bytes(const std::vector<Parameter*>& parameters, const OptimizerOptions& options) {
  const auto rules = make_update_rules(options, Kernels::kReference);
  int64_t bytes = 0;
  for (const Parameter* parameter : parameters) {
    if (!parameter->is_trainable()) continue;
    const at::ScalarType wide = parameter->wide_dtype();
    const UpdateRule& rule = *rules[rule_of(rules, *parameter)];
    const at::ScalarType model_dtype = parameter->value().scalar_type();
    const auto add = [&](const Placement& placement, size_t each) {
      bytes += placement.num_local_elements() * static_cast<int64_t>(each);
    };
    if (model_dtype != wide) add(parameter->placement(), master_bytes(rule, model_dtype, wide, options));
    for (const StateSpec& spec : rule.state(*parameter)) {
      const bool is_whole = spec.shape != StateShape::kElements;
      add(is_whole ? StateLayout(*parameter, spec.shape).placement() : parameter->placement(),
          c10::elementSize(spec.dtype));
    }
  }
  return bytes;
}

}  // namespace megalith
