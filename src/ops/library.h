// How an operator enters PyTorch's dispatcher, and how its interface finds it there. See README.md in this folder.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace megalith::ops {

// The handle of a registered operator. Looked up once and kept by the caller:
//
//   static const auto op = find_op<at::Tensor(const at::Tensor&, double)>("megalith::scale");
//   return op.call(x, factor);
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

// For operators that are half of a differentiable one, or update in place: backward through them raises an error that
// names the operator, instead of cutting the graph silently.
torch::CppFunction not_differentiable();

}  // namespace megalith::ops
