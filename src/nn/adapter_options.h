// Low-rank adapters' options (low_rank_adapter.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

// Ends the name of DoRA's row lengths.
inline constexpr std::string_view kMagnitudeEnding = ".lora_magnitude_vector";

enum class AdapterInit { kXavier, kKaiming, kNormal, kZero, kGaussian };
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

// lora.init_lora_weights, PEFT's word.
struct AdapterStart {
  enum class Kind { kByMethods, kPeft, kGaussian, kPissa, kOlora } kind = Kind::kByMethods;
  std::optional<int64_t> num_iterations = {};  // of pissa_niter_N; none: a whole decomposition

  bool decomposes() const { return kind == Kind::kPissa || kind == Kind::kOlora; }
};
std::optional<AdapterStart> parse_adapter_start(std::string_view word);

// Names and defaults are Primus's.
struct LoraOptions {
  bool enabled = false;
  int64_t dim = 32;
  double alpha = 32;
  bool use_rslora = false, use_dora = false;
  double dropout = 0;
  AdapterDropout dropout_position = AdapterDropout::kPre;
  AdapterInit a_init = AdapterInit::kXavier, b_init = AdapterInit::kZero;  // read a_start(), b_start()
  std::string init_lora_weights = "default";
  std::vector<std::string> target_modules = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  std::vector<std::string> rank_pattern, alpha_pattern;  // "q_proj=16"
  std::vector<std::string> modules_to_save;
  BaseQuantization quantization = BaseQuantization::kNone;
  double loraplus_lr_ratio = 1;

  void visit(OptionVisitor& v);

  // A part's, by canonical name, with the patterns; the first that matches counts, as in PEFT.
  int64_t rank_of(std::string_view part) const;
  double alpha_of(std::string_view part) const;
  // alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732).
  double scale_of(std::string_view part) const;
  AdapterStart start() const;  // by methods if the word is unknown
  AdapterInit a_start() const;
  AdapterInit b_start() const;
  // By Megatron-LM's word.
  bool targets(LinearKind kind) const;
  // By canonical name: "model.layers.0.self_attn.q_proj". The head is not among all-linear.
  bool targets(std::string_view part, bool is_head = false) const;
  // A word of modules_to_save means this weight: ends the name of a module that has it, as in PEFT.
  bool saves(std::string_view weight) const;
  bool has_expressions() const;  // among the targets
  bool packs_weights() const { return enabled && quantization == BaseQuantization::kNf4; }
};

// A tied table's other name, which PEFT trains apart from the table's.
bool names_tied_head(std::string_view weight);

struct AdaptableLayer {
  LinearKind kind = LinearKind::kOther;
  std::vector<std::string> parts;
  std::vector<int64_t> rows = {};  // of each part
  int64_t in_features = 0;
  int64_t num_experts = 0;  // listed one expert after another; 0: none
  bool is_head = false, is_tied = false;
};

// Refuses targets and patterns that match no layer, targets and ranks of only some of a layer's experts, ranks above a
// width, dropout or DoRA of experts, and a tied head. Empty unless enabled.
std::vector<UserError> check_lora_options(const LoraOptions& options);
std::vector<UserError> check_lora_targets(const LoraOptions& options, const std::vector<AdaptableLayer>& layers);

}  // namespace megalith
