// See torchtitan_job.h. Most keys are handled by torchtitan_rules.table; here are figures made from several.
#include "compat/torchtitan_job.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "compat/file_words.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr FileTrainer kTorchtitan = {.name = "torchtitan",
                                     .assigns = " = ",
                                     .takes = "it takes",
                                     .switch_values = "true or false",
                                     .unknown = "torchtitan has no key '{key}'",
                                     .unknown_remedy = "job files of torchtitan v0.2 are read",
                                     .refused_remedy = "remove the line"};

std::string scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return "";
}

class JobFileReader : public FileWords {
 public:
  JobFileReader(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment)
      : FileWords(torchtitan_keys(), kTorchtitan, config_root, environment), file_(file) {}

  ConfigFile read() {
    return read_by([&](const toml::table& file) { flatten(file, ""); });
  }

  // One of the file's tables, each a whole configuration.
  ConfigFile read(const std::string& name) {
    return read_by([&](const toml::table& file) { take_named(file, name); });
  }

  // Translates the settings of a Primus experiment. A null counts as not written.
  ConfigFile read(ConfigFile primus) {
    for (const Setting& setting : primus.settings) {
      if (setting.value.form == WrittenValue::Form::kNull) continue;
      add(setting.name, {setting.value, setting.source.where, setting.name});
    }
    primus.settings.clear();
    result = std::move(primus);
    return translate();
  }

 private:
  ConfigFile read_by(const std::function<void(const toml::table& file)>& take) {
    try {
      const std::string text = read_file(file_);
      take(toml::parse(text, file_.string()));
    } catch (const toml::parse_error& error) {
      fail(fmt::format("{}:{}: {}", file_.string(), error.source().begin.line, error.description()),
           "mend the line, or check the file with another reader of TOML");
    } catch (const UserError& error) {
      result.errors.push_back(error);
    }
    return result.errors.empty() ? translate() : std::move(result);
  }

  void take_named(const toml::table& file, const std::string& name) {
    const toml::table* table = file[name].as_table();
    if (table == nullptr) {
      std::vector<std::string> names;
      for (const auto& [key, node] : file) names.emplace_back(key.str());
      const std::string nearest = nearest_word(name, names);
      throw UserError(fmt::format("torchtitan's {} has no configuration '{}'{}", file_.stem().string(), name,
                                  nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
                      fmt::format("take one of {}", join(names, ", ")));
    }
    if (const auto why = (*table)["refused"].value<std::string>()) {
      throw UserError(fmt::format("torchtitan's configuration {} is not supported: {}", name, *why), "take another");
    }
    if (const auto base = (*table)["base"].value<std::string>()) take_named(file, *base);
    flatten(*table, "");
    words_.erase("base");
  }

  ConfigFile translate() {
    check_keys();
    if (!result.errors.empty()) return std::move(result);
    set_folders();
    apply_all({[&] { choose_model(); }, [&] { choose_batch(); }, [&] { choose_learning_rate(); },
               [&] { choose_precision(); }, [&] { choose_sharding(); }, [&] { choose_pipeline(); },
               [&] { apply("recomputation"); }, [&] { apply("data"); }, [&] { apply("checkpoints"); },
               [&] { choose_outputs(); }});
    name_useless_keys(file_.string(), [](const std::string&) { return true; });
    return std::move(result);
  }

  void apply(std::string_view part) {
    static const WordRules rules("torchtitan_rules");
    rules.apply(part, *this);
  }

  void flatten(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(std::string_view(key));
      if (const toml::table* below = node.as_table()) {
        flatten(*below, name + ".");
        continue;
      }
      FileWord word{WrittenValue::of(scalar_text(node)), fmt::format("{}:{}", file_.string(), node.source().begin.line),
                    name};
      if (const toml::array* list = node.as_array()) {
        word.written = {WrittenValue::Form::kList, {}};
        for (const toml::node& item : *list) word.written.items.push_back(scalar_text(item));
      }
      add(name, std::move(word));
    }
  }

  void set_folders() {
    const fs::path folder(text("job.dump_folder"));
    for (const auto& [fact, key] : {std::pair("@checkpoints", "checkpoint.folder"),
                                    std::pair("@board", "metrics.save_tb_folder"),
                                    std::pair("@traces", "profiling.save_traces_folder")}) {
      set_fact(fact, (folder / text(key)).lexically_normal().string());
    }
  }

  bool has_pipeline() const { return whole("parallelism.pipeline_parallel_degree") > 1; }

  // Qwen3's are named by their active parameters: 30B-A3B.
  bool has_experts() const {
    const std::string name = text("model.name"), flavor = text("model.flavor");
    if (name == "qwen3") return flavor.find("-A") != std::string::npos || flavor.ends_with("_moe");
    return name != "llama3" && name != "flux";
  }

  void choose_model() {
    set_fact("@has_experts", has_experts() ? "true" : "false");
    set_fact("@flavor", text("model.name") + "/" + text("model.flavor"), "model.flavor");
    std::error_code ignored;
    set_fact("@has_assets", fs::exists(text("model.hf_assets_path"), ignored) ? "true" : "false");
    apply("model");
    take_options();
  }

  void choose_batch() {
    if (has_pipeline()) {
      const int64_t ranks = whole("parallelism.data_parallel_shard_degree") *
                            whole("parallelism.data_parallel_replicate_degree");
      set_fact("@batch", std::to_string(whole("training.local_batch_size") * ranks));
    }
    apply("batch");
  }

  void choose_learning_rate() {
    const int64_t steps = whole("training.steps");
    int64_t warmup = whole("lr_scheduler.warmup_steps");
    if (warmup >= steps) {
      warmup = std::max<int64_t>(steps - 1, 0);
      note(fmt::format("{} is not below training.steps {}: it is {} here", said("lr_scheduler.warmup_steps"), steps,
                       warmup));
    }
    set_fact("@warmup", std::to_string(warmup));
    set_fact("@min_lr", number_text(number("optimizer.lr") * number("lr_scheduler.min_lr_factor")));
    int64_t decay = steps - warmup;
    const bool has_ratio = is_written("lr_scheduler.decay_ratio");
    if (has_ratio) decay = std::llround(static_cast<double>(steps) * number("lr_scheduler.decay_ratio"));
    const bool is_whole = !has_ratio && text("lr_scheduler.decay_type") != "sqrt";
    set_fact("@decay", is_whole ? "whole" : decay <= 0 ? "none" : std::to_string(decay));
    apply("lr");
  }

  void choose_precision() {
    const std::vector<std::string> converters =
        is_written("model.converters") ? items("model.converters") : std::vector<std::string>();
    const bool has_fp8 = std::any_of(converters.begin(), converters.end(),
                                     [](const std::string& one) { return one.ends_with("float8"); });
    set_fact("@fp8", has_fp8 ? "true" : "false");
    apply("precision");
  }

  void choose_sharding() {
    const bool is_fsdp = whole("parallelism.data_parallel_shard_degree") != 1;
    set_fact("@is_fsdp", is_fsdp ? "true" : "false");
    apply("sharding");
  }

  void choose_pipeline() {
    const std::string key = "parallelism.pipeline_parallel_schedule";
    set_fact("@schedule", lower_case(text(key)), key);
    apply("pipeline");
  }

  void choose_outputs() {
    if (is_on("profiling.enable_profiling")) {
      const int64_t begin = whole("profiling.profile_freq") - whole("profiling.profiler_active");
      set_fact("@trace_begin", std::to_string(std::max<int64_t>(begin, 0)));
    }
    if (const std::string_view wait = "comm.train_timeout_seconds"; is_written(wait)) {
      set_fact("@timeout", number_text(number(wait) / 60));
    }
    apply("outputs");
  }

  const fs::path file_;
};

}  // namespace

ConfigFile read_torchtitan_job(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment) {
  return JobFileReader(file, config_root, environment).read();
}

ConfigFile read_torchtitan_name(const fs::path& module, const std::string& name, const fs::path& config_root,
                                const EnvironmentMap& environment) {
  return JobFileReader(module, config_root, environment).read(name);
}

ConfigFile read_primus_file(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment) {
  ConfigFile found = read_config_file(file, config_root, environment);
  if (found.framework != kTorchtitan.name || !found.errors.empty()) return found;
  return JobFileReader(file, config_root, environment).read(std::move(found));
}

}  // namespace megalith
