// Shared by the options of all layers: traits, bounds of sizes, and the check of rules.
//
// The structs of nn/*_options.h hold a user's options, in Megatron-LM's names, and layers are built from them. Their
// headers are free of torch's. For each topic visit_…() declares the options and check_…() lists the broken rules: the
// reader of a configuration reports all, a layer throws the first.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Most options of a model change what its weights mean; those that do not say so.
inline constexpr OptionTraits kOfModel{
    .changes_weights = true, .in_toy = InToy::kKept, .read_by = kTextModels, .acts_in = kWithModel};

// See models/model_bounds.h for why sizes have bounds.
inline constexpr int64_t kMostWidth = 1 << 20;      // of the residual stream, a head or a latent vector; 25600
inline constexpr int64_t kMostFfnWidth = 1 << 22;   // 4 * kMostWidth; Megatron-LM's 1T model has 102400
inline constexpr int64_t kMostHeads = 4096;         // Megatron-LM's 1T model has 160
inline constexpr int64_t kMostPositions = 1 << 30;  // Llama 4 Scout has 10^7
inline constexpr int64_t kMostExperts = 65536;      // Switch Transformer has 2048

// UserError for the first rule that the options break; `name` says whose options they are.
template <typename Options>
void require_options(std::string_view name, const std::type_identity_t<Options>& options,
                     void (*check)(const Options&, std::vector<UserError>&)) {
  std::vector<UserError> errors;
  check(options, errors);
  if (!errors.empty()) {
    throw UserError(fmt::format("{}: {}", name, errors.front().message()), errors.front().remedy());
  }
}

}  // namespace megalith
