// See inspect_flux.h.
#include "cli/inspect_flux.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "checkpoint/tensor_store.h"
#include "core/error.h"

namespace megalith {
namespace {

// A size that other tensors say stands as -1; the dims are named by it where they are to agree.
struct FluxField {
  const char* name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

}  // namespace

ModelInput read_flux_input(const std::string& path, const ModelConfig& config, bool has_target, at::Device device) {
  const TensorStore store = TensorStore::open_file(path);
  const auto size_of = [&](std::string_view name, size_t dim) -> int64_t {
    const TensorStore::Entry* entry = store.find(name);
    return entry == nullptr || entry->shape.size() != 3 ? 0 : entry->shape[dim];
  };
  const int64_t b = size_of("image", 0), n = size_of("image", 1), l = size_of("text", 1);
  std::vector<FluxField> fields = {{"image", {b, n, config.in_channels}},
                                   {"text", {b, l, config.context_dim}},
                                   {"pooled", {b, config.vec_in_dim}},
                                   {"timesteps", {b}},
                                   {"image_positions", {n, 3}, at::kLong}};
  if (config.guidance_embed) fields.push_back({"guidance", {b}});
  if (has_target) fields.push_back({"target", {b, n, config.in_channels}});
  ModelInput input;
  std::vector<UserError> errors;
  for (const FluxField& field : fields) {
    const TensorStore::Entry* entry = store.find(field.name);
    if (entry == nullptr || entry->shape != field.shape || b * n * l == 0) {
      errors.emplace_back(fmt::format("inputs_file {}: {} is {}, expected [{}]", path, field.name,
                                      entry == nullptr ? "missing" : fmt::format("[{}]", fmt::join(entry->shape, ", ")),
                                      fmt::join(field.shape, ", ")),
                          "docs/flux.md says what the file holds");
      continue;
    }
    const at::Tensor whole = at::empty(field.shape, at::TensorOptions(field.dtype));
    store.read(field.name, Box::whole(field.shape), whole);
    input.more.set(field.name, whole.to(device));
  }
  throw_if_any(errors);
  input.context.b = b;
  input.context.s = n;
  input.context.encoder_s = l;
  input.context.is_training = false;
  return input;
}

}  // namespace megalith
