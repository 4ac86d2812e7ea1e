#include "comm/context_parallel.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace megalith {
namespace {

constexpr ContextParallelKind kAllContextParallelKinds[] = {ContextParallelKind::kP2p, ContextParallelKind::kAllGather,
                                                            ContextParallelKind::kAllToAll,
                                                            ContextParallelKind::kAllToAllP2p};

bool has_kind(const std::vector<ContextParallelKind>& kinds, ContextParallelKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

void check_heads_over(std::string_view option, int64_t heads, int64_t tp, int64_t size, const std::string& what,
                      std::vector<UserError>& errors) {
  if (heads % tp != 0 || heads / tp % size == 0) return;  // heads % tp is another rule's
  const std::string on_rank = tp == 1 ? fmt::format("{} {}", option, heads)
                                      : fmt::format("the {} heads that a rank has of {} {}", heads / tp, option, heads);
  errors.emplace_back(
      fmt::format("{} spreads the heads of a layer over {} ranks, which does not divide {}", what, size, on_rank),
      "use fewer ranks there, or cp_comm_type p2p or all_gather, which leave the heads together");
}

}  // namespace

std::string_view name_of(ContextParallelKind kind) {
  switch (kind) {
    case ContextParallelKind::kP2p:
      return "p2p";
    case ContextParallelKind::kAllGather:
      return "all_gather";
    case ContextParallelKind::kAllToAll:
      return "a2a";
    case ContextParallelKind::kAllToAllP2p:
      return "a2a+p2p";
  }
  return "?";
}

std::optional<ContextParallelKind> find_context_parallel_kind(std::string_view word) {
  for (const ContextParallelKind kind : kAllContextParallelKinds) {
    if (word == name_of(kind)) return kind;
  }
  return std::nullopt;
}

std::vector<ContextParallelKind> context_parallel_kinds(const ParallelOptions& options) {
  std::vector<ContextParallelKind> kinds;
  for (const std::string& word : options.cp_comm_type) {
    const auto kind = find_context_parallel_kind(word);
    MEGALITH_CHECK(kind, "cp_comm_type '{}'", word);
    kinds.push_back(*kind);
  }
  return kinds;
}

ContextParallelKind context_parallel_kind(const std::vector<ContextParallelKind>& kinds, int64_t layer) {
  if (kinds.empty()) return ContextParallelKind::kP2p;
  // Prediction modules share the last layer's.
  return kinds[std::min(static_cast<size_t>(layer), kinds.size() - 1)];
}

std::vector<UserError> check_context_parallel_options(const ParallelOptions& options) {
  std::vector<UserError> errors;
  for (const std::string& word : options.cp_comm_type) {
    if (find_context_parallel_kind(word)) continue;
    errors.emplace_back(fmt::format("cp_comm_type has no '{}'", word), "choose among p2p, all_gather, a2a and a2a+p2p");
  }
  if (options.cp_comm_type.empty()) {
    errors.emplace_back("cp_comm_type is empty", "choose among p2p, all_gather, a2a and a2a+p2p");
  }
  const std::vector<int64_t>& sizes = options.hierarchical_context_parallel_sizes;
  const int64_t cp = options.context_parallel_size;
  const bool is_two = sizes.size() == 2 && sizes[0] >= 1 && sizes[1] >= 1;
  if (!sizes.empty() && (!is_two || sizes[0] * sizes[1] != cp)) {
    errors.emplace_back(
        fmt::format("hierarchical_context_parallel_sizes {} does not make context_parallel_size {}",
                    fmt::join(sizes, " "), cp),
        "give two numbers whose product is context_parallel_size: the ranks of an all-to-all, and those of a ring");
  }
  if (errors.empty() && cp > 1 && sizes.empty() &&
      has_kind(context_parallel_kinds(options), ContextParallelKind::kAllToAllP2p)) {
    errors.emplace_back(fmt::format("cp_comm_type a2a+p2p needs to know how context_parallel_size {} is divided", cp),
                        "set hierarchical_context_parallel_sizes to the ranks of an all-to-all and those of a ring");
  }
  return errors;
}

std::vector<UserError> check_context_parallel_model(const ParallelOptions& options, const ContextParallelModel& model) {
  std::vector<UserError> errors;
  const int64_t cp = options.context_parallel_size, tp = options.tensor_model_parallel_size;
  if (cp == 1 || !check_context_parallel_options(options).empty()) return errors;
  const std::vector<ContextParallelKind> kinds = context_parallel_kinds(options);
  if (kinds.size() != 1 && std::ssize(kinds) != model.num_layers) {
    errors.emplace_back(
        fmt::format("cp_comm_type has {} words, and the model {} layers", kinds.size(), model.num_layers),
        "give one word, or one for each layer; prediction modules take the last layer's");
  }
  if (model.seq_length && *model.seq_length % (2 * cp) != 0) {
    errors.emplace_back(fmt::format("context_parallel_size {} cuts sequences into {} equal chunks, which does not "
                                    "divide seq_length {}",
                                    cp, 2 * cp, *model.seq_length),
                        fmt::format("set seq_length to a multiple of {}", 2 * cp));
  }
  const auto check = [&](ContextParallelKind kind, int64_t size, const std::string& what) {
    if (!model.seq_length || !has_kind(kinds, kind)) return;
    check_heads_over("num_attention_heads", model.num_heads, tp, size, what, errors);
    check_heads_over("num_query_groups", model.num_kv_heads, tp, size, what, errors);
  };
  check(ContextParallelKind::kAllToAll, cp, fmt::format("cp_comm_type a2a with context_parallel_size {}", cp));
  if (!options.hierarchical_context_parallel_sizes.empty()) {
    const int64_t ulysses = options.hierarchical_context_parallel_sizes[0];
    check(ContextParallelKind::kAllToAllP2p, ulysses,
          fmt::format("cp_comm_type a2a+p2p with hierarchical_context_parallel_sizes {} {}", ulysses,
                      options.hierarchical_context_parallel_sizes[1]));
  }
  return errors;
}

}  // namespace megalith
