// All operators but those of operators.cc: the CPU's, directly on the device's memory, so that a result has the bits of
// the CPU. As on a GPU, tensors of two devices do not meet, and an operator whose result's shape depends on numbers
// makes the host wait.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/memory.h"
#include "pretend/accelerator/on_host.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {

at::Tensor as_host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  void* data = x.numel() > 0 ? const_cast<void*>(x.const_data_ptr()) : nullptr;
  return at::from_blob(data, x.sizes(), x.strides(), x.options().device(at::kCPU).requires_grad(false));
}

void wait_for_stream(c10::DeviceIndex device) { streams_of(device).run(current_stream_id(device)); }

void host_waits_for_stream(c10::DeviceIndex device) {
  wait_for_stream(device);
  streams_of(device).tell_host(current_stream_id(device));
}

void note_use_of(const at::Tensor& x, bool is_written) {
  if (!x.is_privateuseone() || !x.storage()) return;
  const void* const block = x.storage().data();
  note_use(block, is_written);
  keep_in_graph(x.device().index(), [block, is_written] { note_use(block, is_written); });
}

void before_operator_on(at::Device device) {
  if (!device.is_cpu() && current_stream_id(device.index()) != kMainStream) wait_for_stream(device.index());
}

namespace {

using at::Tensor;
using torch::jit::Stack;

const std::set<std::string>& waiting_operators() {
  static const auto* const names = new std::set<std::string>{
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::equal",   "aten::bincount",      "aten::histc",    "aten::is_nonzero"};
  return *names;
}
bool takes_indices(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_" ||
         name == "aten::_unsafe_index";
}

// An operator's arguments: their tensors, each with the number of its argument, and the device that they name.
struct Arguments {
  std::vector<std::pair<size_t, Tensor>> tensors;
  std::optional<at::Device> device;

  Arguments(const c10::OperatorHandle& op, const Stack& stack) {
    const auto values = torch::jit::last(stack, op.schema().arguments().size());
    for (size_t i = 0; i < values.size(); ++i) add(i, values[i]);
  }

 private:
  void add(size_t i, const c10::IValue& value) {
    if (value.isTensor()) {
      if (!value.toTensor().defined()) return;
      tensors.emplace_back(i, value.toTensor());
      see(value.toTensor().device());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) add(i, element);
    } else if (value.isDevice()) {
      see(value.toDevice());
    }
  }
  void see(at::Device where) {
    if (!device.has_value() && where.is_privateuseone()) device = where;
  }
};

// As CUDA: a CPU's tensor without dims is a number, and indices may come from the CPU, for which the host waits.
void check_devices(const std::string& name, const Arguments& arguments) {
  for (const auto& [i, tensor] : arguments.tensors) {
    if (tensor.device() == *arguments.device || (tensor.is_cpu() && tensor.dim() == 0)) continue;
    if (takes_indices(name) && i == 1 && tensor.is_cpu()) continue;
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", name, " found ", tensor.device(), " and ",
                *arguments.device);
  }
}

bool makes_the_host_wait(const std::string& name, const Arguments& arguments, const Stack& stack) {
  if (waiting_operators().contains(name)) return true;
  if (name == "aten::repeat_interleave") return stack.back().isNone();  // the size of the result was not given
  if (!takes_indices(name)) return false;
  for (const auto& [i, tensor] : arguments.tensors) {
    const bool is_mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    if (i == 1 && (tensor.is_cpu() || is_mask)) return true;
  }
  return false;
}

c10::IValue on_host(const c10::IValue& value, bool is_written) {
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone()) {
    const Tensor& x = value.toTensor();
    // A result that the operator is to size must have memory of its own: see give_back().
    return is_written && x.numel() == 0 ? at::empty(x.sizes(), x.options().device(at::kCPU)) : as_host(x);
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) return at::Device(at::kCPU);
  if (value.isTensorList() || value.isOptionalTensorList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, on_host(list.get(i), is_written));
    return list;
  }
  return value;
}

// Copies back a tensor whose size the operator has changed: its result is in host memory.
void give_back(const c10::IValue& argument, const c10::IValue& given) {
  if (!argument.isTensor() || !argument.toTensor().is_privateuseone()) return;
  const Tensor& x = argument.toTensor();
  const Tensor& result = given.toTensor();
  if (result.sizes() == x.sizes()) return;
  x.resize_(result.sizes());
  x.copy_(result);
}

Tensor on_device(const Tensor& result, at::Device device) {
  if (!result.defined()) return result;
  const c10::DeviceGuard guard(device);
  Tensor x = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
  as_host(x).copy_(result);
  return x;
}

c10::IValue on_device(const c10::IValue& result, at::Device device) {
  if (result.isTensor()) return on_device(result.toTensor(), device);
  if (!result.isTensorList()) return result;
  std::vector<Tensor> list = result.toTensorVector();
  for (Tensor& x : list) x = on_device(x, device);
  return list;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// The tensors of a result on the device, without owning them.
std::vector<Tensor> places_of(const c10::IValue& result) {
  std::vector<Tensor> places;
  const auto add = [&](const Tensor& x) { places.push_back(x.is_privateuseone() ? as_host(x) : Tensor()); };
  if (result.isTensor() && result.toTensor().defined()) add(result.toTensor());
  if (result.isTensorList()) {
    for (const Tensor& x : result.toTensorVector()) add(x);
  }
  return places;
}

// An operator in the replay of a graph: the CPU's on the same memory, its results copied to the same addresses.
struct Again {
  c10::OperatorHandle op;
  std::vector<c10::IValue> given;
  std::vector<std::pair<size_t, Tensor>> sized;                // arguments that the operator sizes, and their memory
  std::vector<std::pair<size_t, std::vector<Tensor>>> places;  // of results that are no arguments

  void operator()() const {
    Stack stack(given.begin(), given.end());
    for (const auto& [i, place] : sized) stack[i] = at::empty({0}, place.options());
    const Stack arguments = stack;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (const auto& [i, place] : sized) place.copy_(arguments[i].toTensor());
    for (const auto& [i, of_result] : places) {
      const std::vector<Tensor> results =
          stack[i].isTensor() ? std::vector{stack[i].toTensor()} : stack[i].toTensorVector();
      for (size_t k = 0; k < of_result.size(); ++k) {
        if (of_result[k].defined()) of_result[k].copy_(results[k]);
      }
    }
  }
};

void run_on_host(const c10::OperatorHandle& op, Stack* stack, std::optional<at::Device> device, bool is_kept) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, count);
  std::vector<c10::IValue> given;
  for (size_t i = 0; i < count; ++i) given.push_back(on_host(arguments[i], is_written(schema.arguments()[i])));
  // A number of the CPU's is what the device was told.
  for (c10::IValue& value : given) {
    const bool is_number = is_kept && value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0;
    if (is_number && arguments[static_cast<size_t>(&value - given.data())].toTensor().is_cpu()) {
      value = value.toTensor().clone();
    }
  }
  Again again{op, given, {}, {}};
  stack->insert(stack->end(), given.begin(), given.end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  std::vector<c10::IValue> results = torch::jit::pop(*stack, schema.returns().size());
  std::vector<c10::IValue> written;
  for (size_t i = 0; i < count; ++i) {
    if (!is_written(schema.arguments()[i])) continue;
    const bool is_sized = arguments[i].isTensor() && arguments[i].toTensor().is_privateuseone() &&
                          given[i].toTensor().sizes() != arguments[i].toTensor().sizes();
    give_back(arguments[i], given[i]);
    if (is_kept && is_sized) again.sized.emplace_back(i, as_host(arguments[i].toTensor()));
    written.push_back(arguments[i]);
  }
  // Results that are arguments come in their order.
  size_t next = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_written(schema.returns()[i])) {
      stack->push_back(written.at(next++));
    } else {
      stack->push_back(device.has_value() ? on_device(results[i], *device) : results[i]);
      if (is_kept) again.places.emplace_back(i, places_of(stack->back()));
    }
  }
  if (is_kept) keep_in_graph(device->index(), std::move(again));
}

void note_uses(const c10::FunctionSchema& schema, const Arguments& arguments) {
  for (const auto& [i, tensor] : arguments.tensors) note_use_of(tensor, is_written(schema.arguments()[i]));
}

void fall_back(const c10::OperatorHandle& op, Stack* stack) {
  const Arguments arguments(op, *stack);
  const bool is_issued = !is_at_work() && arguments.device.has_value();
  if (is_issued) {
    const std::string& name = op.schema().name();
    check_devices(name, arguments);
    if (makes_the_host_wait(name, arguments, *stack)) {
      note_wait(name);
      host_waits_for_stream(arguments.device->index());
    }
    before_operator_on(*arguments.device);
    note_uses(op.schema(), arguments);
  }
  const AtWork at_work;
  run_on_host(op, stack, arguments.device, is_issued && is_captured(arguments.device->index()));
}

}  // namespace
}  // namespace megalith::pretend

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&megalith::pretend::fall_back>());
}

// LibTorch composes these on devices of others: with other roundings than the CPU's kernel, or, for the grouped
// product, with waits that a GPU with a kernel for it does not have.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&megalith::pretend::fall_back>());
  m.impl("silu_backward", torch::CppFunction::makeFromBoxedFunction<&megalith::pretend::fall_back>());
}
