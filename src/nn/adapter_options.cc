#include "nn/adapter_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "nn/option_rules.h"

namespace megalith {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::array<std::pair<std::string_view, LinearKind>, 4> kFusedNames = {{
    {"linear_qkv", LinearKind::kQkv},
    {"linear_proj", LinearKind::kAttentionOutput},
    {"linear_fc1", LinearKind::kMlpUp},
    {"linear_fc2", LinearKind::kMlpDown},
}};

bool is_expression(std::string_view word) { return word.find_first_of("\\^$*+?()[]{}|") != std::string_view::npos; }

bool means_kind(std::string_view word, LinearKind kind) {
  return std::any_of(kFusedNames.begin(), kFusedNames.end(),
                     [&](const auto& row) { return row.first == word && row.second == kind; });
}

bool means_part(const std::string& word, std::string_view part) {
  if (word == kAllLinear) return true;
  if (is_expression(word)) return std::regex_match(part.begin(), part.end(), std::regex(word));
  return part == word || (part.ends_with(word) && part[part.size() - word.size() - 1] == '.');
}

bool means(const std::string& word, const AdaptableLayer& layer) {
  return means_kind(word, layer.kind) || std::any_of(layer.parts.begin(), layer.parts.end(),
                                                     [&](const std::string& part) { return means_part(word, part); });
}

}  // namespace

void LoraOptions::visit(OptionVisitor& v) {
  v.group("Low-rank adapters", {.in_toy = InToy::kKept,
                                .read_by = kAllModels - kBiencoders - kClassifiers,
                                .acts_in = {RunCommand::kGenerate, RunCommand::kEvaluate}});
  v.field("lora.enabled", enabled,
          "Train low-rank adapters (LoRA) beside the linear layers that lora.target_modules names; all other weights "
          "stay as they are, without gradient and optimizer state.")
      .alias("use_lora");
  v.field("lora.dim", dim, "Rank of an adapter: rows of its A, columns of its B.")
      .alias("lora_rank")
      .alias("lora_r")
      .within(1, kMostWidth)
      .in_toy(InToy::kMade);
  v.field("lora.alpha", alpha, "An adapter's product is multiplied by lora.alpha / lora.dim.")
      .above(0)
      .alias("lora_alpha");
  v.field("lora.use_rslora", use_rslora, "Divide lora.alpha by the root of lora.dim instead.");
  v.field("lora.use_dora", use_dora,
          "Train the length of each row of an adapted weight too (DoRA), beside its direction, which the adapter "
          "turns.")
      .alias("use_dora");
  v.field("lora.dropout", dropout, "Probability of dropping an element of what an adapter reads, in training.")
      .alias("lora_dropout")
      .at_least(0)
      .below(1)
      .read_by(kAllModels - kBiencoders - kEncoderDecoders);
  v.choice("lora.dropout_position", dropout_position, {"pre", "post"},
           "Where lora.dropout acts: on what an adapter reads, or on what it adds.");
  v.choice("lora.lora_A_init_method", a_init, {"xavier", "kaiming", "normal", "zero"},
           "How A begins: normal with variance 2 / (in + dim), uniform within 1 / sqrt(in) (PEFT's), normal with "
           "deviation 0.2, or zero.");
  v.choice("lora.lora_B_init_method", b_init, {"xavier", "kaiming", "normal", "zero"},
           "How B begins; with zero the model begins as it was.")
      .in_toy(InToy::kMade);
  v.field("lora.target_modules", target_modules,
          "Layers with an adapter: names of the Hugging Face model (q_proj, mlp.down_proj), Megatron-LM's fused ones "
          "(linear_qkv, linear_proj, linear_fc1, linear_fc2, whose parts share one A), all-linear, or regular "
          "expressions over whole names.")
      .alias("lora_target_modules")
      .alias("lora_target")
      .in_toy(InToy::kMade);
  v.field("lora.loraplus_lr_ratio", loraplus_lr_ratio,
          "B learns with so many times the learning rate of A (LoRA+, which recommends 16).")
      .above(0)
      .alias("loraplus_lr_ratio")
      .alias("lora_plus_lr_ratio")
      .acts_in(kTrainOnly);
  v.choice("lora.quantization", quantization, {"none", "nf4"},
           "Hold the frozen weights of all linear layers but the head in four bits (QLoRA): NF4 in blocks of 64, whose "
           "scales are held in eight. Each product reads them in the model's precision.")
      .in_toy(InToy::kSetAside);  // rows shorter than a block
}

double LoraOptions::scale() const {
  const auto rank = static_cast<double>(dim);
  return alpha / (use_rslora ? std::sqrt(rank) : rank);
}

bool LoraOptions::targets(LinearKind kind) const {
  return std::any_of(target_modules.begin(), target_modules.end(),
                     [&](const std::string& word) { return means_kind(word, kind); });
}

bool LoraOptions::targets(std::string_view part) const {
  return std::any_of(target_modules.begin(), target_modules.end(),
                     [&](const std::string& word) { return means_part(word, part); });
}

bool LoraOptions::has_expressions() const {
  return std::any_of(target_modules.begin(), target_modules.end(), is_expression);
}

std::vector<UserError> check_lora_options(const LoraOptions& options) {
  std::vector<UserError> errors;
  if (!options.enabled) return errors;
  if (options.target_modules.empty()) {
    errors.emplace_back("lora.enabled is true, and lora.target_modules is empty: nothing would be trained",
                        "name layers, such as q_proj and v_proj, or all-linear");
  }
  for (const std::string& word : options.target_modules) {
    if (!is_expression(word)) continue;
    try {
      const std::regex read(word);
    } catch (const std::regex_error& error) {
      errors.emplace_back(
          fmt::format("lora.target_modules: '{}' is no regular expression: {}", word, error.what()),
          "write one of ECMAScript's form, such as .*layers\\.[0-3]\\..*q_proj, or the last word of a name");
    }
  }
  if (options.a_init == AdapterInit::kZero && options.b_init == AdapterInit::kZero) {
    errors.emplace_back("lora.lora_A_init_method and lora.lora_B_init_method are both zero: neither gets a gradient",
                        "leave lora.lora_A_init_method at xavier");
  }
  return errors;
}

std::vector<UserError> check_lora_targets(const LoraOptions& options, const std::vector<AdaptableLayer>& layers) {
  std::vector<UserError> errors;
  if (!options.enabled) return errors;
  std::set<std::string> names;
  for (const AdaptableLayer& layer : layers) {
    for (const std::string& part : layer.parts) names.insert(part.substr(part.rfind('.') + 1));
  }
  for (const std::string& word : options.target_modules) {
    if (std::any_of(layers.begin(), layers.end(), [&](const AdaptableLayer& layer) { return means(word, layer); }))
      continue;
    errors.emplace_back(fmt::format("lora.target_modules: no linear layer of the model is '{}'", word),
                        fmt::format("there are {}; or all-linear", fmt::join(names, ", ")));
  }
  // One error each: a kind's layers share their faults.
  struct Matrix {
    std::string name;
    int64_t rows, columns;
    int64_t width() const { return std::min(rows, columns); }
  };
  std::optional<Matrix> narrowest;
  std::optional<UserError> of_experts, of_lengths, of_dropout;
  for (const AdaptableLayer& layer : layers) {
    const bool is_shared = options.targets(layer.kind);
    const int64_t all_rows =
        std::accumulate(layer.rows.begin(), layer.rows.end(), int64_t{0}) / std::max<int64_t>(layer.num_experts, 1);
    std::map<std::string, int64_t> num_meant;  // by an expert's linear
    for (size_t i = 0; i < layer.parts.size(); ++i) {
      const std::string& part = layer.parts[i];
      if (!is_shared && !options.targets(std::string_view(part))) continue;
      ++num_meant[part.substr(part.rfind('.') + 1)];
      const Matrix matrix{part, is_shared ? all_rows : layer.rows[i], layer.in_features};
      if (options.dim > matrix.width() && (!narrowest || matrix.width() < narrowest->width())) narrowest = matrix;
    }
    if (layer.num_experts == 0 || num_meant.empty()) continue;
    for (const auto& [linear, count] : num_meant) {
      if (count == layer.num_experts || of_experts) continue;
      of_experts.emplace(fmt::format("lora.target_modules means {} of {} experts of {}", count, layer.num_experts,
                                     layer.parts.front()),
                         "experts of a layer have adapters together: let the expression mean all of them, or none");
    }
    if (options.use_dora && !of_lengths) {
      of_lengths.emplace(
          fmt::format("lora.use_dora is true, and lora.target_modules means experts ({}), which have no lengths",
                      layer.parts.front()),
          "set lora.use_dora to false, or name only layers around the experts");
    }
    if (options.dropout > 0 && !of_dropout) {
      of_dropout.emplace(fmt::format("lora.dropout is {}, and lora.target_modules means experts ({}), whose adapters "
                                     "drop nothing",
                                     options.dropout, layer.parts.front()),
                         "set lora.dropout to 0, or name only layers around the experts");
    }
  }
  if (narrowest) {
    errors.emplace_back(fmt::format("lora.dim is {}, but {} is a matrix of {} x {}", options.dim, narrowest->name,
                                    narrowest->rows, narrowest->columns),
                        fmt::format("set lora.dim to {} at most", narrowest->width()));
  }
  for (const auto& error : {of_experts, of_lengths, of_dropout}) {
    if (error) errors.push_back(*error);
  }
  return errors;
}

}  // namespace megalith
