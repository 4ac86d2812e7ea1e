// Training some of the weights: axolotl's unfrozen_parameters and LLaMA-Factory's finetuning_type freeze as --freeze.
//
// Sources: axolotl, utils/freeze.py; LLaMA-Factory, model/adapter.py, _setup_freeze_tuning().
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "compat/finetuner_reader.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostLayers = 10'000;  // each is a word of the expression

// "\\.(?:30|31)\\.(?:mlp|self_attn)": of LLaMA-Factory's names.
std::string layers_expression(int64_t begin, int64_t end, const std::vector<std::string>& modules) {
  std::vector<std::string> layers;
  for (int64_t layer = begin; layer < end; ++layer) layers.push_back(std::to_string(layer));
  const bool are_all = std::find(modules.begin(), modules.end(), "all") != modules.end();
  return fmt::format("\\.(?:{})\\.{}", join(layers, "|"), are_all ? "" : fmt::format("(?:{})", join(modules, "|")));
}

int64_t num_layers_of(const fs::path& file) {
  const Json whole = load_json(file);
  const Json* inner = find_member(whole, "text_config", file.string());
  const Json& config = inner != nullptr ? *inner : whole;
  for (const char* key : {"num_hidden_layers", "num_layers", "n_layer"}) {
    if (find_member(config, key, file.string()) == nullptr) continue;
    return json_get_whole(config, key, 1, kMostLayers, file.string());
  }
  throw UserError(fmt::format("{} does not say how many layers the model has", file.string()),
                  "name the weights that are not trained with --freeze");
}

}  // namespace

void FinetunerReader::choose_trained_weights() {
  std::string trained, by;  // an expression at a name's beginning
  if (is_written("unfrozen_parameters")) {
    const std::vector<std::string> patterns = items("unfrozen_parameters");
    const bool has_pictures = std::any_of(patterns.begin(), patterns.end(), [](const std::string& pattern) {
      return pattern.find("language_model") != std::string::npos;
    });
    if (text("@method") != "full" || has_pictures) return apply("trained");
    std::vector<std::string> names;
    for (const std::string& pattern : patterns) {
      if (std::regex_search(pattern, std::regex("\\[[0-9]*(:[0-9]*)?\\]$"))) {
        refuse("unfrozen_parameters", "whole weights, without a range of their rows");
      }
      // A dot is itself there, unless + follows.
      names.push_back(std::regex_replace(pattern, std::regex("\\.(?!\\+)"), "\\."));
    }
    trained = join(names, "|");
    by = "unfrozen_parameters";
  } else if (has("finetuning_type") && text("finetuning_type") == "freeze") {
    by = "freeze_trainable_layers";
    const int64_t count = whole(by);
    if (count == 0 || count < -kMostLayers || count > kMostLayers) {
      refuse(by, fmt::format("a number of layers from 1 to {}, or below 0 for the first ones", kMostLayers));
    }
    int64_t begin = 0, end = -count;
    if (count > 0) {
      const fs::path file = fs::path(text("model_name_or_path")) / "config.json";
      std::error_code code;
      if (!fs::exists(file, code)) {
        refuse(by, "the first layers (-2), or the last ones of a model whose folder is here",
               "fetch the model and name its folder, or name the weights that are not trained with --freeze");
      }
      end = num_layers_of(file);
      begin = std::max<int64_t>(0, end - count);
    }
    trained = ".*(?:" + layers_expression(begin, end, names_in("freeze_trainable_modules"));
    if (is_written("freeze_extra_modules")) trained += "|" + join(names_in("freeze_extra_modules"), "|");
    trained += ")";
  }
  if (!trained.empty()) {
    set(by, "freeze", WrittenValue{WrittenValue::Form::kList, {fmt::format("(?!(?:{})).*", trained)}});
  }
}

}  // namespace megalith
