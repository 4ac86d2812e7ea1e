// See flow_input.h.
#include "kinds/flow/flow_input.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "checkpoint/tensor_store.h"
#include "config/resolve.h"
#include "core/error.h"
#include "models/flux.h"

namespace megalith {
ModelInput read_flux_input(const std::string& path, const ModelConfig& config, bool has_target, at::Device device) {
  const TensorStore store = TensorStore::open_file(path);
  const auto size_of = [&](const InputSpec& spec, size_t dim) -> int64_t {
    const TensorStore::Entry* entry = store.find(spec.name);
    return entry == nullptr || entry->shape.size() != 3 ? 0 : entry->shape[dim];
  };
  const int64_t b = size_of(input::kImage, 0), n = size_of(input::kImage, 1);
  const int64_t l = size_of(input::kText, 1);
  ModelInput input;
  input.context.b = b;
  input.context.s = n;
  input.context.encoder_s = l;
  input.context.is_training = false;
  std::vector<UserError> errors;
  for (const InputSpec& spec : flux_inputs(config, has_target)) {
    const std::vector<int64_t> shape = input_shape(spec, config, input.context);
    const TensorStore::Entry* entry = store.find(spec.name);
    if (entry == nullptr || entry->shape != shape || b * n * l == 0) {
      errors.emplace_back(fmt::format("inputs_file {}: {} is {}, expected [{}]", path, spec.name,
                                      entry == nullptr ? "missing" : fmt::format("[{}]", fmt::join(entry->shape, ", ")),
                                      fmt::join(shape, ", ")),
                          "docs/flux.md says what the file holds");
      continue;
    }
    const at::Tensor whole = at::empty(shape, at::TensorOptions(spec.dtype));
    store.read(spec.name, Box::whole(shape), whole);
    input.more.set(spec.name, whole.to(device));
  }
  throw_if_any(errors);
  return input;
}

}  // namespace megalith
