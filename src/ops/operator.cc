#include "ops/operator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>
#include <utility>

namespace megalith::ops {

const char* name_of(Origin origin) {
  switch (origin) {
    case Origin::kOwnKernel:
      return "own kernel";
    case Origin::kLibTorch:
      return "LibTorch";
    case Origin::kReference:
      return "reference";
    case Origin::kShapes:
      return "shapes";
  }
  return "unknown";
}

struct OperatorCall::Trace {
  std::vector<c10::IValue> inputs;
  at::RecordFunction record;

  explicit Trace(at::StepCallbacks&& callbacks) : record(std::move(callbacks)) {}
};

OperatorCall::OperatorCall(const char* name, Origin origin, std::initializer_list<const at::Tensor*> arguments) {
  if (origin != Origin::kReference && at::GradMode::is_enabled()) {
    for (const at::Tensor* argument : arguments) {
      const bool is_recorded = argument != nullptr && argument->defined() && argument->requires_grad();
      MEGALITH_CHECK(!is_recorded, "{}: the gradient would be lost; call it in a Function of nn/, or without gradients",
                     name);
    }
  }
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!callbacks.has_value()) return;
  trace_ = std::make_unique<Trace>(std::move(*callbacks));
  const std::string full_name = std::string("megalith::") + name;
  if (trace_->record.needsInputs()) {
    for (const at::Tensor* argument : arguments) {
      if (argument != nullptr) trace_->inputs.emplace_back(*argument);
    }
  }
  trace_->record.before(full_name, c10::ArrayRef<const c10::IValue>(trace_->inputs.data(), trace_->inputs.size()));
}

OperatorCall::~OperatorCall() = default;

}  // namespace megalith::ops
