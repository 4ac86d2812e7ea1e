// nn/*_options.h hold a user's options in Megatron-LM's names, free of torch's headers. visit_…() declares them,
// check_…() lists broken rules: the configuration's reader reports all, a layer throws the first.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

inline constexpr OptionTraits kOfModel{
    .changes_weights = true, .in_toy = InToy::kKept, .read_by = kTextModels, .acts_in = kWithModel};

// models/model_bounds.h says why.
inline constexpr int64_t kMostWidth = 1 << 20;      // known: 25600
inline constexpr int64_t kMostFfnWidth = 1 << 22;   // Megatron-LM's 1T model has 102400
inline constexpr int64_t kMostHeads = 4096;         // Megatron-LM's 1T model has 160
inline constexpr int64_t kMostPositions = 1 << 30;  // Llama 4 Scout has 10^7
inline constexpr int64_t kMostExperts = 65536;      // Switch Transformer has 2048

// UserError for the first broken rule of `name`'s options.
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
