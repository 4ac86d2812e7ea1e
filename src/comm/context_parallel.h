// Ways for attention to see a sequence shared by ranks, in Megatron-LM's words (--cp-comm-type).
//
//   p2p         keys and values travel in a ring
//   all_gather  every rank gathers all keys and values
//   a2a         every rank has all tokens of some heads (Ulysses)
//   a2a+p2p     a2a among neighbours, p2p across
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

enum class ContextParallelKind { kP2p, kAllGather, kAllToAll, kAllToAllP2p };

std::string_view name_of(ContextParallelKind kind);  // "p2p", …
std::optional<ContextParallelKind> find_context_parallel_kind(std::string_view word);

// One for all layers, or one each. Requires check_parallel_sizes().
std::vector<ContextParallelKind> context_parallel_kinds(const ParallelOptions& options);
ContextParallelKind context_parallel_kind(const std::vector<ContextParallelKind>& kinds, int64_t layer);

// Names and sizes only; part of check_parallel_sizes().
std::vector<UserError> check_context_parallel_options(const ParallelOptions& options);

struct ContextParallelModel {
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0;
  std::optional<int64_t> seq_length;  // unset: no whole batches, no sharing
};
std::vector<UserError> check_context_parallel_model(const ParallelOptions& options, const ContextParallelModel& model);

}  // namespace megalith
