#include "verify/toy_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace megalith {
namespace {

int64_t dense_ranks(const ParallelOptions& o) {
  return o.tensor_model_parallel_size * o.context_parallel_size * o.pipeline_model_parallel_size;
}
bool has_expert_sizes(const ParallelOptions& o) {
  return o.expert_model_parallel_size > 1 || o.expert_tensor_parallel_size;
}
int64_t expert_ranks(const ParallelOptions& o) {
  return o.expert_tensor_parallel_size.value_or(o.tensor_model_parallel_size) * o.expert_model_parallel_size *
         o.pipeline_model_parallel_size;
}

int64_t smallest_prime_factor(int64_t value) {
  for (int64_t factor = 2; factor * factor <= value; ++factor) {
    if (value % factor == 0) return factor;
  }
  return value;
}

// Two parts represent more, and two ranks more in a part. 0: unknown.
int64_t replicas_to_keep(int64_t ranks, int64_t parts) {
  const int64_t kept_parts = std::min<int64_t>(parts, 2);
  return ranks == parts ? kept_parts : 2 * kept_parts;
}

// The smallest world with these model sizes and at least so many replicas of dense layers and experts.
int64_t fitting_world(const ParallelOptions& o, int64_t dp, int64_t edp) {
  const int64_t dense = dense_ranks(o), expert = expert_ranks(o), parts = o.num_distributed_optimizer_instances;
  if (!has_expert_sizes(o)) return dense * parts * div_up(dp, parts);
  const int64_t step = std::lcm(dense, expert) * parts;  // both views divide, and their replicas into parts
  return step * std::max(div_up(dense * dp, step), div_up(expert * edp, step));
}

struct Shrinkable {
  std::string name;
  std::function<int64_t()> get;
  std::function<void(int64_t)> set;
};

std::vector<Shrinkable> shrinkable_sizes(ParallelOptions& o) {
  // On ties experts first: they bring data-parallel ranks with them.
  return {{"expert_model_parallel_size", [&] { return o.expert_model_parallel_size; },
           [&](int64_t size) { o.expert_model_parallel_size = size; }},
          {"pipeline_model_parallel_size", [&] { return o.pipeline_model_parallel_size; },
           [&](int64_t size) { o.pipeline_model_parallel_size = size; }},
          {"tensor_model_parallel_size", [&] { return o.tensor_model_parallel_size; },
           [&](int64_t size) {
             if (o.expert_tensor_parallel_size == o.tensor_model_parallel_size) o.expert_tensor_parallel_size = size;
             o.tensor_model_parallel_size = size;
           }},
          {"expert_tensor_parallel_size", [&] { return o.expert_tensor_parallel_size.value_or(1); },
           [&](int64_t size) { o.expert_tensor_parallel_size = size; }},
          {"context_parallel_size", [&] { return o.context_parallel_size; },
           [&](int64_t size) {
             const int64_t factor = o.context_parallel_size / size;
             std::vector<int64_t>& halves = o.hierarchical_context_parallel_sizes;
             if (!halves.empty()) {
               // The larger half shrinks, unless the factor is the other's.
               auto larger = std::max_element(halves.begin(), halves.end());
               if (*larger % factor != 0) larger = halves.begin() + (larger == halves.begin() ? 1 : 0);
               *larger /= factor;
             }
             o.context_parallel_size = size;
           }}};
}

}  // namespace

int64_t ToyWorld::data_parallel_size() const { return div_exact(world_size, dense_ranks(parallel)); }

int64_t smallest_world(const ParallelOptions& options) {
  return fitting_world(options, options.num_distributed_optimizer_instances,
                       has_expert_sizes(options) ? options.num_distributed_optimizer_instances : 1);
}

ToyWorld make_toy_world(const ParallelOptions& options, std::optional<int64_t> world_size, int64_t most_ranks) {
  ToyWorld toy;
  toy.parallel = options;
  ParallelOptions& o = toy.parallel;
  const int64_t parts = options.num_distributed_optimizer_instances;
  const int64_t asked_dp = world_size ? *world_size / dense_ranks(options) : 0;
  const int64_t asked_edp = world_size ? *world_size / expert_ranks(options) : 0;
  const int64_t dp = replicas_to_keep(asked_dp, parts), edp = replicas_to_keep(asked_edp, parts);
  o.num_distributed_optimizer_instances = std::min<int64_t>(parts, 2);

  const std::vector<Shrinkable> sizes = shrinkable_sizes(o);
  std::vector<int64_t> asked;
  for (const Shrinkable& size : sizes) asked.push_back(size.get());
  while (fitting_world(o, dp, edp) > most_ranks) {
    const auto largest = std::max_element(sizes.begin(), sizes.end(),
                                          [](const Shrinkable& a, const Shrinkable& b) { return a.get() < b.get(); });
    const int64_t size = largest->get();
    if (size == 1) break;  // only data parallelism is left
    largest->set(size / smallest_prime_factor(size));
  }
  if (o.use_tp_pp_dp_mapping && o.pipeline_model_parallel_size > 1 && dense_ranks(o) != expert_ranks(o)) {
    o.use_tp_pp_dp_mapping = false;
    toy.cuts.emplace_back("use_tp_pp_dp_mapping is off");
  }
  toy.world_size = fitting_world(o, dp, edp);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].get() != asked[i])
      toy.cuts.push_back(fmt::format("{} {} -> {}", sizes[i].name, asked[i], sizes[i].get()));
  }
  if (o.num_distributed_optimizer_instances != parts) {
    toy.cuts.push_back(
        fmt::format("num_distributed_optimizer_instances {} -> {}", parts, o.num_distributed_optimizer_instances));
  }
  if (asked_dp > 0 && asked_dp != toy.data_parallel_size()) {
    toy.cuts.push_back(fmt::format("data-parallel ranks {} -> {}", asked_dp, toy.data_parallel_size()));
  }
  return toy;
}

}  // namespace megalith
