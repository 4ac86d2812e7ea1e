#include "cli/text_ranks.h"

#include <fmt/format.h>

#include <numeric>

#include "core/error.h"

namespace megalith {

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
