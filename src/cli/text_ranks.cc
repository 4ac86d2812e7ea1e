#include "cli/text_ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int64_t kNothing = -1;

}  // namespace

std::optional<std::string> TextRanks::share(std::optional<std::string> text) const {
  if (groups_.world->size() == 1) return text;
  const at::Tensor size = at::full({1}, text ? std::ssize(*text) : kNothing, at::kLong);
  groups_.world->broadcast(size, 0, "text size").wait();
  const auto num_bytes = size.item<int64_t>();
  if (num_bytes == kNothing) return std::nullopt;
  std::string shared(static_cast<size_t>(num_bytes), '\0');
  if (is_first()) shared = *text;
  if (num_bytes == 0) return shared;
  const at::Tensor bytes = at::from_blob(shared.data(), {num_bytes}, at::kByte).clone();
  groups_.world->broadcast(bytes, 0, "text").wait();
  std::memcpy(shared.data(), bytes.const_data_ptr<uint8_t>(), shared.size());
  return shared;
}

bool TextRanks::share(bool flag) const {
  if (groups_.world->size() == 1) return flag;
  const at::Tensor shared = at::full({1}, flag ? 1 : 0, at::kLong);
  groups_.world->broadcast(shared, 0, "flag").wait();
  return shared.item<int64_t>() != 0;
}

void check_writing_ranks(const Resolved& resolved) {
  const ParallelOptions& parallel = resolved.config.parallel;
  const int64_t tp = parallel.tensor_model_parallel_size, world_size = resolved.derived.world_size;
  const int64_t of_experts = parallel.expert_tensor_parallel_size.value_or(tp) * parallel.expert_model_parallel_size;
  const int64_t model_ranks =
      std::lcm(tp * parallel.context_parallel_size, of_experts) * parallel.pipeline_model_parallel_size;
  if (world_size == model_ranks) return;
  throw UserError(
      fmt::format("{} ranks were started, and the model to generate with lies on {}", world_size, model_ranks),
      fmt::format("start {} rank{}, or spread the model further with tensor_model_parallel_size", model_ranks,
                  model_ranks == 1 ? "" : "s"));
}

}  // namespace megalith
