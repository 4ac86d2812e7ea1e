// An operator is up to five tables of functions:
//
//   reference  composed from ATen, on any device: the definition, with which the others are compared
//   cpu        vectorised loops
//   meta       results' shapes and dtypes
//   gpu        our own kernels, if compiled in
//   gpu_aten   LibTorch's own calls, where better than the reference
//
// Each operator's .cc file names its tables, among which a tensor's device and `kernels` choose; there is no registry.
//
// In operators' headers "floating" is bf16, fp16, fp32 or fp64, "wide" fp32, or fp64 for fp64 (wide_dtype). Operators
// throw UserError for other shapes, dtypes and devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "core/error.h"
#include "ops/kernels.h"

namespace megalith::ops {

enum class Origin { kOwnKernel, kLibTorch, kReference, kShapes };

// "own kernel", "LibTorch", "reference", "shapes"
const char* name_of(Origin origin);

template <typename Function>
struct Implementation {
  Function* function;
  Origin origin;
};

// An operator's call, until the end of the scope: "megalith::<name>" in profiler traces.
//
// ATen's autograd may record the reference. Others need nn/'s Functions: outside of them an InternalError prevents
// losing the gradient.
class OperatorCall {
 public:
  OperatorCall(const char* name, Origin origin, std::initializer_list<const at::Tensor*> arguments);  // null: no tensor
  ~OperatorCall();
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

 private:
  struct Trace;
  std::unique_ptr<Trace> trace_;
};

inline const at::Tensor* tensor_or_null(const at::Tensor& argument) { return &argument; }
template <typename T>
const at::Tensor* tensor_or_null(const T& /*argument*/) {
  return nullptr;
}

// An operator runs where its first argument is.
inline at::Device place_of(const at::Tensor& x) { return x.device(); }
inline at::Device place_of(const std::vector<at::Tensor>& tensors) { return tensors.at(0).device(); }

template <typename Table>
struct Operator {
  const char* name;
  const Table *reference, *cpu, *meta;
  // null if absent; their functions may be too
  const Table *gpu = nullptr, *gpu_aten = nullptr;

  // Devices other than the CPU and meta are GPUs: our kernel, else LibTorch's, else the reference.
  template <typename Function>
  Implementation<Function> choose(Function* Table::*member, at::Device device, Kernels kernels) const {
    const Implementation<Function> found = look_up(member, device, kernels);
    MEGALITH_CHECK(found.function != nullptr, "{} has no {} for {}", name, name_of(found.origin), device.str());
    return found;
  }

  template <typename Result, typename... Parameters, typename First, typename... Others>
  Result run(const char* op, Result (*Table::*member)(Parameters...), Kernels kernels, const First& first,
             const Others&... others) const {
    const auto found = choose(member, place_of(first), kernels);
    const OperatorCall call(op, found.origin, {tensor_or_null(first), tensor_or_null(others)...});
    return found.function(first, others...);
  }

 private:
  template <typename Function>
  Implementation<Function> look_up(Function* Table::*member, at::Device device, Kernels kernels) const {
    if (device.is_meta()) return {meta->*member, Origin::kShapes};
    if (kernels == Kernels::kReference) return {reference->*member, Origin::kReference};
    if (device.is_cpu()) return {cpu->*member, Origin::kOwnKernel};
    if (gpu != nullptr && gpu->*member != nullptr) return {gpu->*member, Origin::kOwnKernel};
    if (gpu_aten != nullptr && gpu_aten->*member != nullptr) return {gpu_aten->*member, Origin::kLibTorch};
    return {reference->*member, Origin::kReference};
  }
};

}  // namespace megalith::ops
