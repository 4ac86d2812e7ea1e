// Low-rank adapters' options (low_rank_adapter.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Ends the name of DoRA's row lengths.
inline constexpr std::string_view kMagnitudeEnding = ".lora_magnitude_vector";

enum class AdapterInit { kXavier, kKaiming, kNormal, kZero };
enum class AdapterDropout { kPre, kPost };
enum class BaseQuantization { kNone, kNf4 };

// Megatron-LM's words.
enum class LinearKind {
  kOther,
  kQkv,              // linear_qkv: queries, keys and values in one
  kAttentionOutput,  // linear_proj
  kMlpUp,            // linear_fc1: gate and up in one
  kMlpDown,          // linear_fc2
};

// Names and defaults are Primus's.
struct LoraOptions {
  bool enabled = false;
  int64_t dim = 32;
  double alpha = 32;
  bool use_rslora = false, use_dora = false;
  double dropout = 0;
  AdapterDropout dropout_position = AdapterDropout::kPre;
  AdapterInit a_init = AdapterInit::kXavier, b_init = AdapterInit::kZero;
  std::vector<std::string> target_modules = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  BaseQuantization quantization = BaseQuantization::kNone;
  double loraplus_lr_ratio = 1;

  void visit(OptionVisitor& v);

  // alpha / dim, or alpha / sqrt(dim) (rsLoRA, arXiv:2312.03732).
  double scale() const;
  // By Megatron-LM's word.
  bool targets(LinearKind kind) const;
  // By canonical name: "model.layers.0.self_attn.q_proj".
  bool targets(std::string_view part) const;
  bool has_expressions() const;  // among the targets
  bool packs_weights() const { return enabled && quantization == BaseQuantization::kNf4; }
};

struct AdaptableLayer {
  LinearKind kind = LinearKind::kOther;
  std::vector<std::string> parts;
  std::vector<int64_t> rows = {};  // of each part
  int64_t in_features = 0;
  int64_t num_experts = 0;  // listed one expert after another; 0: none
};

// Refuses targets that match no layer or only some of its experts, ranks above a width, and dropout or DoRA of experts.
// Empty unless enabled.
std::vector<UserError> check_lora_options(const LoraOptions& options);
std::vector<UserError> check_lora_targets(const LoraOptions& options, const std::vector<AdaptableLayer>& layers);

}  // namespace megalith
