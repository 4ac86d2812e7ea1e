// See torchtune_recipe.h. Most keys are handled by torchtune_rules.table; here are the facts its rows use.
#include "compat/torchtune_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "compat/torchtune_words.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// One file per process.
std::string log_name() {
  static const std::string name = fmt::format("log_{}.txt", std::time(nullptr));
  return name;
}

std::string switch_text(bool is_on) { return is_on ? "true" : "false"; }

class RecipeReader : public RecipeWords {
 public:
  using RecipeWords::RecipeWords;

  ConfigFile read() {
    if (!result.errors.empty()) return std::move(result);
    set_fact("@method", "full");
    apply_all({[&] { choose_model(); }, [&] { choose_adapters(); }, [&] { choose_weights(); },
               [&] { choose_tokenizer(); }, [&] { choose_recipe_data(*this, rules()); }, [&] { apply("evaluation"); },
               [&] { choose_duration(); }, [&] { choose_optimizer(); }, [&] { choose_learning_rate(); },
               [&] { choose_precision(); }, [&] { apply("sharding"); }, [&] { choose_recomputation(); },
               [&] { choose_outputs(); }, [&] { choose_traces(); },
               [&] {
                 apply("loss");
                 take_options();
               }});
    name_useless_keys(file_, [&](const std::string& name) {
      return name.find('.') == std::string::npos && is_written(name) &&
             lower_case(find(name)->written.text()) != keys_.find(name)->fallback;
    });
    return std::move(result);
  }

 protected:
  // The folder's own config.json describes the model.
  void take_preset(const std::string& name) override {
    for (const Setting& setting : read_preset(name).settings) {
      if (setting.name == "num_layers") set_fact("@num_layers", setting.value.text());
    }
    if (!fs::exists(fs::path(text("checkpointer.checkpoint_dir")) / "config.json")) FileWords::take_preset(name);
  }

 private:
  static const WordRules& rules() {
    static const WordRules all("torchtune_rules");
    return all;
  }
  void apply(std::string_view part) { rules().apply(part, *this); }

  bool is_full() const { return text("@method") == "full"; }

  std::string in_output(const std::string& name) const {
    const char* key = is_written("checkpointer.output_dir") ? "checkpointer.output_dir" : "output_dir";
    return (fs::path(text(key)) / name).string();
  }

  void choose_model() {
    std::string name = text("model._component_");
    if (name.empty()) refuse("model._component_", "a model's builder");
    const bool is_qlora = name.starts_with("qlora_"), is_lora = name.starts_with("lora_");
    if (is_lora || is_qlora) {
      set_fact("@method", is_qlora || is_on("model.quantize_base") ? "qlora" : "lora");
      name.erase(0, name.find('_') + 1);
    }
    for (const std::string_view ending : {"_base", "_instruct"}) {
      if (name.ends_with(ending)) name.erase(name.size() - ending.size());
    }
    set_fact("@builder", name, "model._component_");
    apply("model");
  }

  void choose_adapters() {
    if (is_full()) {
      for (const auto& [name, word] : all()) {
        if (!name.starts_with("model.") || name == "model._component_") continue;
        throw UserError(
            fmt::format("{}, and {} has no adapters", said(name), written_text("model._component_")),
            fmt::format("name the builder that begins with lora_, or add the word ~{}", name));
      }
      return;
    }
    std::vector<std::string> targets;
    if (is_written("model.lora_attn_modules")) targets = items("model.lora_attn_modules");
    for (std::string& layer : targets) {
      if (layer == "output_proj") {
        layer = "o_proj";
      } else if (layer != "q_proj" && layer != "k_proj" && layer != "v_proj") {
        refuse("model.lora_attn_modules", "q_proj, k_proj, v_proj, output_proj");
      }
    }
    if (is_on("model.apply_lora_to_mlp")) targets.insert(targets.end(), {"gate_proj", "up_proj", "down_proj"});
    if (is_on("model.apply_lora_to_output")) targets.emplace_back("lm_head");
    set_fact("@targets", fmt::format("[{}]", join(targets, ", ")), "model.lora_attn_modules");
    apply("adapters");
  }

  void choose_weights() {
    const fs::path folder(text("checkpointer.checkpoint_dir"));
    set_fact("@adapter", (folder / text("checkpointer.adapter_checkpoint")).parent_path().string());
    set_fact("@states", in_output("recipe_state"));
    apply("weights");
  }

  void choose_tokenizer() {
    const fs::path path(text("tokenizer.path"));
    const std::string weights = text("checkpointer.checkpoint_dir");
    // The same vocabulary is next to the weights in Hugging Face's form.
    const std::string inner = path.lexically_normal().lexically_relative(weights).string();
    const bool is_beside = !weights.empty() && !inner.empty() && !inner.starts_with("..");
    const fs::path named = path.filename() == "vocab.json" ? path.parent_path() : path;
    set_fact("@tokenizer", is_beside ? "" : named.string(), "tokenizer.path");
    apply("tokenizer");
  }

  void choose_duration() {
    if (find("epochs") == nullptr) return;
    const int64_t epochs = whole("epochs");
    if (is_written("max_steps_per_epoch")) {
      num_steps_ = epochs * whole("max_steps_per_epoch");
      set_fact("@steps", std::to_string(*num_steps_));
    }
    apply("duration");
  }

  void choose_optimizer() {
    const std::string name = text("optimizer._component_");
    const bool is_8bit = name.ends_with("8bit");
    set_fact("@is_8bit", switch_text(is_8bit));
    set_fact("@is_narrow", switch_text(!is_8bit && name != "AdamW" && name != "PagedAdamW" && name != "Adam"));
    const std::vector<std::string> betas = items("optimizer.betas");
    set_fact("@num_betas", std::to_string(betas.size()));
    set_fact("@beta1", betas.empty() ? "" : betas.front());
    set_fact("@beta2", betas.empty() ? "" : betas.back());
    apply("optimizer");
  }

  void choose_learning_rate() {
    if (text("lr_scheduler._component_") == "get_cosine_schedule_with_warmup") {
      const int64_t warmup = whole("lr_scheduler.num_warmup_steps");
      set_fact("@ends_warm", switch_text(num_steps_ && *num_steps_ <= warmup));
      set_fact("@decay_iters", std::to_string(warmup + 1));
    }
    apply("lr");
  }

  void choose_precision() {
    set_fact("@is_bf16_only", switch_text(is_full() || is_on("@is_narrow")));
    apply("precision");
  }

  void choose_recomputation() {
    set_fact("@is_full", switch_text(is_on("enable_activation_checkpointing") || text("ac_mode") == "full"));
    apply("recomputation");
  }

  void choose_outputs() {
    const int64_t last = std::max<int64_t>(whole("epochs"), 1) - 1;
    const char* key = find("checkpointer.output_dir") != nullptr ? "checkpointer.output_dir" : "output_dir";
    set_fact("@last_pass", in_output(fmt::format("epoch_{}", last)), key);
    const std::string dir = "metric_logger.log_dir", file = "metric_logger.filename";
    set_fact("@logs", is_written(dir) ? text(dir) : in_output("logs"));
    set_fact("@log_file", (fs::path(text("@logs")) / (is_written(file) ? text(file) : log_name())).string());
    apply("outputs");
  }

  void choose_traces() {
    if (is_on("profiler.enabled")) {
      const int64_t begin = whole("profiler.wait_steps") + whole("profiler.warmup_steps");
      set_fact("@trace_begin", std::to_string(begin));
      set_fact("@trace_end", std::to_string(begin + whole("profiler.active_steps")));
    }
    const std::string folder = "profiler.output_dir";
    set_fact("@traces", is_written(folder) ? text(folder) : in_output("profiling_outputs"), folder);
    apply("traces");
  }

  std::optional<int64_t> num_steps_;
};

}  // namespace

bool is_torchtune_recipe(const fs::path& file) {
  std::error_code error;
  const std::string ending = file.extension().string();
  if ((ending != ".yaml" && ending != ".yml") || !fs::is_regular_file(file, error)) return false;
  try {
    const std::string text = read_file(file);
    for (size_t at = text.find("_component_:"); at != std::string::npos; at = text.find("_component_:", at + 1)) {
      const size_t line = text.rfind('\n', at) + 1;  // 0 in the first line
      if (text.find_first_not_of(" ", line) == at) return true;
    }
  } catch (const UserError&) {  // reported by the code that reads it
  }
  return false;
}

ConfigFile read_torchtune_recipe(const fs::path& file, const std::vector<std::string>& words,
                                 const fs::path& config_root, const EnvironmentMap& environment) {
  return RecipeReader(file, words, config_root, environment).read();
}

}  // namespace megalith
