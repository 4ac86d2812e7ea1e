#include "nn/adapter_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
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

bool ends_name(std::string_view word, std::string_view part) {
  return part == word || (part.ends_with(word) && part[part.size() - word.size() - 1] == '.');
}

bool means_part(const std::string& word, std::string_view part) {
  if (word == kAllLinear) return true;
  if (is_expression(word)) return std::regex_match(part.begin(), part.end(), std::regex(word));
  return ends_name(word, part);
}

// "q_proj=16". The expression may have '=' itself.
struct PatternEntry {
  std::string key, value;

  explicit PatternEntry(const std::string& text)
      : key(text.substr(0, text.rfind('='))), value(text.substr(std::min(text.rfind('='), text.size() - 1) + 1)) {}
  // As PEFT's get_pattern_key: an expression for the end of a name, from a dot or the beginning on.
  bool means(std::string_view part) const {
    if (!is_expression(key)) return ends_name(key, part);
    return std::regex_match(part.begin(), part.end(), std::regex("(.*\\.)?(" + key + ")"));
  }
};

std::optional<std::string> value_for(const std::vector<std::string>& pattern, std::string_view part) {
  for (const std::string& text : pattern) {
    const PatternEntry entry(text);
    if (entry.means(part)) return entry.value;
  }
  return std::nullopt;
}

bool means(const std::string& word, const AdaptableLayer& layer) {
  if (layer.is_head && word == kAllLinear) return false;
  return means_kind(word, layer.kind) || std::any_of(layer.parts.begin(), layer.parts.end(),
                                                     [&](const std::string& part) { return means_part(word, part); });
}

constexpr std::string_view kIterations = "pissa_niter_";
constexpr int64_t kMostIterations = 1000;

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
  v.field(
       "lora.init_lora_weights", init_lora_weights,
       "PEFT's word for how A and B begin: true (A as kaiming, B zero), gaussian (A with deviation 1 / rank, B zero), "
       "pissa (the weight's largest singular values, exactly or as pissa_niter_N by N iterations), olora (its QR "
       "decomposition). default: by the two methods above. After pissa and olora the model begins as it was too, and "
       "adapters are saved with twice the rank, beside the same model.")
      .alias("init_lora_weights")
      .alias("lora_init");
  v.field(
       "lora.target_modules", target_modules,
       "Layers with an adapter: names of the Hugging Face model (q_proj, mlp.down_proj), Megatron-LM's fused ones "
       "(linear_qkv, linear_proj, linear_fc1, linear_fc2, whose parts share one A), all-linear, which leaves out the "
       "head (lm_head), or regular expressions over whole names.")
      .alias("lora_target_modules")
      .alias("lora_target")
      .in_toy(InToy::kMade);
  v.field("lora.rank_pattern", rank_pattern,
          "Other ranks of some layers, NAME=RANK: the end of a Hugging Face name, or a regular expression for it. The "
          "first that fits counts.")
      .alias("rank_pattern")
      .in_toy(InToy::kMade);
  v.field("lora.alpha_pattern", alpha_pattern, "Other lora.alpha of some layers, NAME=ALPHA.")
      .alias("alpha_pattern")
      .in_toy(InToy::kMade);
  v.field(
       "lora.modules_to_save", modules_to_save,
       "Modules that are trained whole beside the adapters, and saved with them: ends of Hugging Face names, such as "
       "embed_tokens, lm_head, norm.")
      .alias("modules_to_save")
      .alias("lora_modules_to_save")
      .alias("additional_target");
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

std::optional<AdapterStart> parse_adapter_start(std::string_view word) {
  using Kind = AdapterStart::Kind;
  if (word == "default") return AdapterStart{};
  if (word == "true") return AdapterStart{Kind::kPeft};
  if (word == "gaussian") return AdapterStart{Kind::kGaussian};
  if (word == "olora") return AdapterStart{Kind::kOlora};
  if (word == "pissa") return AdapterStart{Kind::kPissa};
  if (!word.starts_with(kIterations)) return std::nullopt;
  const std::optional<int64_t> count = parse_integer(word.substr(kIterations.size()));
  if (!count || *count < 0 || *count > kMostIterations) return std::nullopt;
  return AdapterStart{Kind::kPissa, count};
}

int64_t LoraOptions::rank_of(std::string_view part) const {
  const auto own = value_for(rank_pattern, part);
  return own ? parse_integer(*own).value_or(dim) : dim;
}

double LoraOptions::alpha_of(std::string_view part) const {
  const auto own = value_for(alpha_pattern, part);
  return own ? parse_number(*own).value_or(alpha) : alpha;
}

double LoraOptions::scale_of(std::string_view part) const {
  const auto rank = static_cast<double>(rank_of(part));
  return alpha_of(part) / (use_rslora ? std::sqrt(rank) : rank);
}

AdapterStart LoraOptions::start() const { return parse_adapter_start(init_lora_weights).value_or(AdapterStart{}); }

AdapterInit LoraOptions::a_start() const {
  switch (start().kind) {
    case AdapterStart::Kind::kByMethods:
      return a_init;
    case AdapterStart::Kind::kPeft:
      return AdapterInit::kKaiming;
    case AdapterStart::Kind::kGaussian:
      return AdapterInit::kGaussian;
    case AdapterStart::Kind::kPissa:
    case AdapterStart::Kind::kOlora:
      return AdapterInit::kZero;  // until it is decomposed
  }
  throw InternalError("a start without a row here");
}

AdapterInit LoraOptions::b_start() const {
  return start().kind == AdapterStart::Kind::kByMethods ? b_init : AdapterInit::kZero;
}

bool LoraOptions::targets(LinearKind kind) const {
  return std::any_of(target_modules.begin(), target_modules.end(),
                     [&](const std::string& word) { return means_kind(word, kind); });
}

bool LoraOptions::targets(std::string_view part, bool is_head) const {
  return std::any_of(target_modules.begin(), target_modules.end(), [&](const std::string& word) {
    return !(is_head && word == kAllLinear) && means_part(word, part);
  });
}

bool LoraOptions::saves(std::string_view weight) const {
  for (size_t end = weight.rfind('.'); end != std::string_view::npos && end > 0; end = weight.rfind('.', end - 1)) {
    const std::string_view module = weight.substr(0, end);
    if (std::any_of(modules_to_save.begin(), modules_to_save.end(),
                    [&](const std::string& word) { return module.ends_with(word); }))
      return true;
  }
  return false;
}

bool names_tied_head(std::string_view weight) {
  return weight.ends_with("lm_head.weight") || weight.ends_with("predictions.decoder.weight");
}

bool LoraOptions::has_expressions() const {
  return std::any_of(target_modules.begin(), target_modules.end(), is_expression);
}

namespace {

// Entries of a pattern that are not NAME=NUMBER, with a number that `is_value` takes.
void check_pattern(const char* option, const std::vector<std::string>& pattern, const char* number,
                   const std::function<bool(const std::string&)>& is_value, std::vector<UserError>& errors) {
  for (const std::string& text : pattern) {
    const PatternEntry entry(text);
    try {
      if (text.find('=') != std::string::npos && !entry.key.empty() && is_value(entry.value)) {
        entry.means("");
        continue;
      }
      errors.emplace_back(fmt::format("{}: '{}' is not a name, '=' and {}", option, text, number),
                          fmt::format("write it as q_proj={}", 16));
    } catch (const std::regex_error& error) {
      errors.emplace_back(fmt::format("{}: '{}' is no regular expression: {}", option, entry.key, error.what()),
                          "write the end of a name, such as mlp.down_proj");
    }
  }
}

// Faults of layers that adapters are asked for. One error of a kind: a kind's layers share their faults.
class TargetFaults {
 public:
  explicit TargetFaults(const LoraOptions& options) : options_(options) {}

  void look_at(const AdaptableLayer& layer) {
    const bool is_shared = options_.targets(layer.kind);
    const int64_t all_rows =
        std::accumulate(layer.rows.begin(), layer.rows.end(), int64_t{0}) / std::max<int64_t>(layer.num_experts, 1);
    std::map<std::string, std::vector<std::string>> meant;  // by an expert's linear
    std::vector<std::string> all, together;                 // together: have one A
    for (size_t i = 0; i < layer.parts.size(); ++i) {
      const std::string& part = layer.parts[i];
      if (!is_shared && !options_.targets(part, layer.is_head)) continue;
      meant[part.substr(part.rfind('.') + 1)].push_back(part);
      if (is_shared) together.push_back(part);
      all.push_back(part);
      look_at_width(part, is_shared ? all_rows : layer.rows[i], layer.in_features);
    }
    if (!meant.empty() && layer.is_head) look_at_head(layer);
    if (options_.start().kind == AdapterStart::Kind::kGaussian) {
      look_at_ranks(all, "gaussian draws in one");
    }
    look_at_ranks(together, "share one A");
    adapted_.insert(adapted_.end(), all.begin(), all.end());
    if (layer.num_experts == 0 || meant.empty()) return;
    look_at_experts(layer, meant);
  }

  std::vector<UserError> errors() const {
    std::vector<UserError> all;
    for (const auto& error : {width_, experts_, lengths_, dropout_, ranks_, head_}) {
      if (error) all.push_back(*error);
    }
    for (const auto& [name, pattern] :
         {std::pair{"lora.rank_pattern", &options_.rank_pattern}, {"lora.alpha_pattern", &options_.alpha_pattern}}) {
      for (const std::string& text : *pattern) {
        const PatternEntry entry(text);
        if (std::ranges::any_of(adapted_, [&](const std::string& part) { return entry.means(part); })) continue;
        all.emplace_back(fmt::format("{}: no layer with an adapter has a name that ends with '{}'", name, entry.key),
                         "name one of lora.target_modules, or leave the entry out");
      }
    }
    return all;
  }

 private:
  void look_at_width(const std::string& part, int64_t rows, int64_t columns) {
    const int64_t rank = options_.rank_of(part), width = std::min(rows, columns);
    if (rank <= width || (width_ && width >= narrowest_)) return;
    narrowest_ = width;
    const char* option = rank == options_.dim ? "lora.dim" : "lora.rank_pattern";
    width_.emplace(fmt::format("{} is {}, but {} is a matrix of {} x {}", option, rank, part, rows, columns),
                   fmt::format("set {} to {} at most", option, width));
  }

  void look_at_head(const AdaptableLayer& layer) {
    const std::string& name = layer.parts.front();
    if (layer.is_tied) {
      head_.emplace(fmt::format("lora.target_modules means {}, whose weight is the embedding's too", name),
                    "leave it out: adapters of tied tables cannot be merged");
    } else if (options_.use_dora) {
      head_.emplace(fmt::format("lora.use_dora is true, and lora.target_modules means {}, which has no lengths", name),
                    "set lora.use_dora to false, or leave the head out");
    } else if (options_.start().decomposes()) {
      head_.emplace(
          fmt::format("lora.init_lora_weights is {}, and lora.target_modules means {}, which is not decomposed",
                      options_.init_lora_weights, name),
          "leave the head out, or begin with lora.init_lora_weights true");
    }
  }

  void look_at_ranks(const std::vector<std::string>& parts, const char* why) {
    for (const std::string& part : parts) {
      const std::string& first = parts.front();
      if (ranks_ ||
          (options_.rank_of(part) == options_.rank_of(first) && options_.alpha_of(part) == options_.alpha_of(first)))
        continue;
      ranks_.emplace(fmt::format("lora.rank_pattern and lora.alpha_pattern give {} rank {} and alpha {}, and {} {} and "
                                 "{}, which {}",
                                 first, options_.rank_of(first), options_.alpha_of(first), part, options_.rank_of(part),
                                 options_.alpha_of(part), why),
                     "let the patterns mean both, or name linear layers by their Hugging Face names");
    }
  }

  void look_at_experts(const AdaptableLayer& layer, const std::map<std::string, std::vector<std::string>>& meant) {
    const std::string& first = layer.parts.front();
    for (const auto& [linear, parts] : meant) {
      look_at_ranks(parts, "are experts of a layer");
      if (std::ssize(parts) == layer.num_experts || experts_) continue;
      experts_.emplace(
          fmt::format("lora.target_modules means {} of {} experts of {}", parts.size(), layer.num_experts, first),
          "experts of a layer have adapters together: let the expression mean all of them, or none");
    }
    if (options_.use_dora && !lengths_) {
      lengths_.emplace(
          fmt::format("lora.use_dora is true, and lora.target_modules means experts ({}), which have no lengths",
                      first),
          "set lora.use_dora to false, or name only layers around the experts");
    }
    if (options_.dropout > 0 && !dropout_) {
      dropout_.emplace(fmt::format("lora.dropout is {}, and lora.target_modules means experts ({}), whose adapters "
                                   "drop nothing",
                                   options_.dropout, first),
                       "set lora.dropout to 0, or name only layers around the experts");
    }
  }

  const LoraOptions& options_;
  std::vector<std::string> adapted_;
  int64_t narrowest_ = 0;
  std::optional<UserError> width_, experts_, lengths_, dropout_, ranks_, head_;
};

}  // namespace

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
  if (!parse_adapter_start(options.init_lora_weights)) {
    errors.emplace_back(fmt::format("lora.init_lora_weights is {}", options.init_lora_weights),
                        "take default, true, gaussian, pissa, pissa_niter_N with N up to 1000, or olora");
  }
  if (options.a_start() == AdapterInit::kZero && options.b_start() == AdapterInit::kZero &&
      !options.start().decomposes()) {
    errors.emplace_back("lora.lora_A_init_method and lora.lora_B_init_method are both zero: neither gets a gradient",
                        "leave lora.lora_A_init_method at xavier");
  }
  if (options.packs_weights() && options.start().decomposes()) {
    errors.emplace_back(fmt::format("lora.init_lora_weights is {}, and lora.quantization is nf4: weights in four bits "
                                    "are not decomposed",
                                    options.init_lora_weights),
                        "leave one of the two out");
  }
  check_pattern(
      "lora.rank_pattern", options.rank_pattern, "a rank",
      [](const std::string& text) {
        const auto rank = parse_integer(text);
        return rank && *rank >= 1 && *rank <= kMostWidth;
      },
      errors);
  check_pattern(
      "lora.alpha_pattern", options.alpha_pattern, "a number above 0",
      [](const std::string& text) { return parse_number(text).value_or(0) > 0; }, errors);
  return errors;
}

std::vector<UserError> check_lora_targets(const LoraOptions& options, const std::vector<AdaptableLayer>& layers) {
  std::vector<UserError> errors;
  if (!options.enabled) return errors;
  std::set<std::string> names;
  TargetFaults faults(options);
  for (const AdaptableLayer& layer : layers) {
    faults.look_at(layer);
    if (layer.is_head) continue;
    for (const std::string& part : layer.parts) names.insert(part.substr(part.rfind('.') + 1));
  }
  for (const std::string& word : options.target_modules) {
    if (std::any_of(layers.begin(), layers.end(), [&](const AdaptableLayer& layer) { return means(word, layer); }))
      continue;
    errors.emplace_back(fmt::format("lora.target_modules: no linear layer of the model is '{}'", word),
                        fmt::format("there are {}; or all-linear", fmt::join(names, ", ")));
  }
  for (UserError& error : faults.errors()) errors.push_back(std::move(error));
  return errors;
}

}  // namespace megalith
