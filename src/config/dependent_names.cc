// The tables; see dependent_names.h.
#include "config/dependent_names.h"

#include <algorithm>
#include <iterator>

namespace megalith {
namespace {

constexpr GatedOption kGatedOptions[] = {{"patch_zero_bubble", "enable_zero_bubble"},
                                         {"patch_zero_bubble", "zero_bubble_v_schedule"},
                                         {"patch_primus_pipeline", "pp_algorithm"}};

// Recomputation's first name implied full granularity and one layer.
constexpr ImpliedValue kImpliedValues[] = {{"activations_checkpoint_method", "recompute_granularity", "full"},
                                           {"activations_checkpoint_method", "recompute_num_layers", "1"}};

constexpr IdleName kIdleNames[] = {
    {"muon_tp_mode", "optimizer", "adam|sgd|lion|adafactor|adam8bit", "read only by the optimizer muon"},
    {"muon_tp_mode", "tensor_model_parallel_size", "1", "without tensor parallelism every rank has whole matrices"},
};

}  // namespace

std::span<const GatedOption> gated_options() { return kGatedOptions; }

bool is_gate(std::string_view name) {
  return std::any_of(std::begin(kGatedOptions), std::end(kGatedOptions),
                     [&](const GatedOption& row) { return row.gate == name; });
}

std::span<const ImpliedValue> implied_values() { return kImpliedValues; }

bool implies_values(std::string_view word) {
  return std::any_of(std::begin(kImpliedValues), std::end(kImpliedValues),
                     [&](const ImpliedValue& row) { return row.word == word; });
}

std::span<const IdleName> idle_names() { return kIdleNames; }

bool may_be_idle(std::string_view name) {
  return std::any_of(std::begin(kIdleNames), std::end(kIdleNames),
                     [&](const IdleName& row) { return row.name == name; });
}

}  // namespace megalith
