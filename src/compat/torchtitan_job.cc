// See torchtitan_job.h.
#include "compat/torchtitan_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "compat/file_keys.h"
#include "config/presets.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// What the file says of a key.
struct JobValue {
  std::string text;                // of a list its items, with commas
  std::vector<std::string> items;  // of a list
  std::string where;               // "llama3_8b.toml:31"
};

using JobValues = std::map<std::string, JobValue, std::less<>>;

struct Flavor {
  std::string_view name, preset;
  // What differs from the preset.
  std::vector<std::pair<std::string_view, std::string_view>> sizes = {};
};

const std::vector<Flavor>& flavors() {
  static const std::vector<Flavor> all = {
      {"debugmodel",
       "llama3.1_8B",
       {{"num_layers", "6"},
        {"hidden_size", "256"},
        {"ffn_hidden_size", "768"},
        {"num_attention_heads", "16"},
        {"num_query_groups", "16"},
        {"vocab_size", "2048"},
        {"bos_token_id", "null"},
        {"eos_token_ids", "[]"}}},
      {"8B", "llama3.1_8B"},
      {"70B", "llama3.1_70B"},
      {"405B", "llama3.1_405B"},
  };
  return all;
}

class JobFileReader {
 public:
  JobFileReader(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment)
      : file_(file), root_(config_root), environment_(environment) {}

  ConfigFile read() {
    try {
      const std::string text = read_file(file_);
      const toml::table job = toml::parse(text, file_.string());
      flatten(job, "");
    } catch (const toml::parse_error& error) {
      fail(fmt::format("{}:{}: {}", file_.string(), error.source().begin.line, error.description()),
           "mend the line, or check the file with another reader of TOML");
      return std::move(result_);
    } catch (const UserError& error) {
      result_.errors.push_back(error);
      return std::move(result_);
    }
    check_keys();
    if (!result_.errors.empty()) return std::move(result_);
    apply_rule([&] { choose_model(); });
    for (auto rule :
         {&JobFileReader::choose_batch, &JobFileReader::choose_learning_rate, &JobFileReader::choose_precision,
          &JobFileReader::choose_sharding, &JobFileReader::choose_pipeline, &JobFileReader::choose_recomputation,
          &JobFileReader::choose_data, &JobFileReader::choose_checkpoints, &JobFileReader::choose_outputs}) {
      apply_rule([&] { (this->*rule)(); });
    }
    name_useless_keys();
    return std::move(result_);
  }

 private:
  template <typename Rule>
  void apply_rule(const Rule& rule) {
    try {
      rule();
    } catch (const UserError& error) {
      result_.errors.push_back(error);
    }
  }

  void fail(std::string message, std::string remedy) {
    result_.errors.emplace_back(std::move(message), std::move(remedy));
  }

  // --- what the file says

  static std::string scalar_text(const toml::node& node) {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
    if (const auto* number = node.as_floating_point()) return number_text(number->get());
    if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
    return "";
  }

  void flatten(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(std::string_view(key));
      JobValue value;
      value.where = fmt::format("{}:{}", file_.string(), node.source().begin.line);
      if (const toml::table* below = node.as_table()) {
        flatten(*below, name + ".");
        continue;
      }
      if (const toml::array* list = node.as_array()) {
        for (const toml::node& item : *list) value.items.push_back(scalar_text(item));
        value.text = join(value.items, ",");
      } else {
        value.text = scalar_text(node);
      }
      values_.emplace(name, std::move(value));
    }
  }

  void check_keys() {
    for (const auto& [name, value] : values_) {
      const FileKey* key = torchtitan_keys().find(name);
      if (key == nullptr) {
        const std::string nearest = nearest_word(name, torchtitan_keys().names());
        fail(fmt::format("{}: torchtitan has no key '{}'{}", value.where, name,
                         nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
             "job files of torchtitan v0.2 are read");
      } else if (key->kind == FileKeyKind::kRefused && value.text != key->fallback) {
        fail(fmt::format("{}: {} = {} is not supported: {}", value.where, name, value.text, key->text),
             "remove the line");
      }
    }
  }

  bool is_written(std::string_view name) const { return values_.contains(name); }

  // The file's word, else torchtitan's own.
  std::string text(std::string_view name) const {
    const auto found = values_.find(name);
    if (found != values_.end()) return found->second.text;
    const FileKey* key = torchtitan_keys().find(name);
    MEGALITH_CHECK(key != nullptr, "no key '{}' in the table", name);
    return std::string(key->fallback);
  }

  // The first of several names that the file has, else the first one.
  std::string_view written_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (is_written(name)) return name;
    }
    return *names.begin();
  }

  std::string said(std::string_view name) const {
    const auto found = values_.find(name);
    const std::string where = found == values_.end() ? "torchtitan's default" : found->second.where;
    return fmt::format("{}: {} = {}", where, name, text(name));
  }

  [[noreturn]] void refuse(std::string_view name, std::string_view expected, std::string remedy = "") const {
    throw UserError(fmt::format("{}, but it takes: {}", said(name), expected), std::move(remedy));
  }

  bool is_on(std::string_view name) const {
    const auto value = parse_bool(text(name));
    if (!value) refuse(name, "true or false");
    return *value;
  }

  int64_t whole(std::string_view name) const {
    const auto value = parse_integer(text(name));
    if (!value) refuse(name, "a whole number");
    return *value;
  }

  double number(std::string_view name) const {
    const auto value = parse_number(text(name));
    if (!value) refuse(name, "a number");
    return *value;
  }

  // --- what it becomes

  // An option, said by a key.
  void set(std::string_view key, std::string option, std::string value) {
    const auto found = values_.find(key);
    const bool is_said = found != values_.end();
    result_.settings.push_back({std::move(option),
                                WrittenValue::of(std::move(value)),
                                {is_said ? OptionLayer::kFile : OptionLayer::kPreset,
                                 is_said ? found->second.where : fmt::format("torchtitan's {}", key)}});
  }

  void set_as(std::string_view key, std::string option) { set(key, std::move(option), text(key)); }

  // The whole value of a `name`, where it is one option by itself.
  void take_single_option(std::string_view name) {
    const FileKey* key = torchtitan_keys().find(name);
    set_as(name, std::string(key->text));
  }

  void choose_model() {
    if (text("model.name") != "llama3") {
      refuse("model.name", "llama3", "name a model of ours with --config instead; 'megalith presets' lists them");
    }
    const std::string flavor = text("model.flavor");
    const auto found =
        std::find_if(flavors().begin(), flavors().end(), [&](const Flavor& one) { return one.name == flavor; });
    if (found == flavors().end()) {
      std::vector<std::string_view> names;
      for (const Flavor& one : flavors()) names.push_back(one.name);
      refuse("model.flavor", fmt::format("{}", fmt::join(names, ", ")));
    }
    const ConfigFile preset = read_config_file(find_config(std::string(found->preset), root_), root_, environment_);
    for (Setting setting : preset.settings) {
      setting.source.layer = OptionLayer::kPreset;
      result_.settings.push_back(std::move(setting));
    }
    for (const auto& [option, value] : found->sizes) {
      result_.settings.push_back({std::string(option),
                                  WrittenValue::of(std::string(value)),
                                  {OptionLayer::kPreset, "torchtitan's debugmodel"}});
    }
    for (const char* name : {"training.steps", "training.seq_len", "training.max_norm", "optimizer.lr",
                             "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "optimizer.weight_decay",
                             "metrics.log_freq", "parallelism.context_parallel_degree"}) {
      take_single_option(name);
    }
    if (text("optimizer.name") != "AdamW") refuse("optimizer.name", "AdamW", "see --optimizer");
  }

  void choose_batch() {
    const std::string_view local = written_of({"training.local_batch_size", "training.batch_size"});
    if (whole("training.global_batch_size") >= 0) set_as("training.global_batch_size", "global_batch_size");
    if (whole("parallelism.pipeline_parallel_degree") <= 1) return set_as(local, "micro_batch_size");
    // torchtitan cuts a rank's batch into the pipeline's microbatches.
    set_as("parallelism.pipeline_parallel_microbatch_size", "micro_batch_size");
    if (whole("training.global_batch_size") >= 0) return;
    const int64_t sharded = whole("parallelism.data_parallel_shard_degree");
    if (sharded < 1) {
      throw UserError(fmt::format("{} needs training.global_batch_size or parallelism.data_parallel_shard_degree here",
                                  said("parallelism.pipeline_parallel_degree")),
                      "the file does not say how many ranks share the samples of a step");
    }
    const int64_t ranks = sharded * whole("parallelism.data_parallel_replicate_degree");
    set(local, "global_batch_size", std::to_string(whole(local) * ranks));
  }

  void choose_learning_rate() {
    const int64_t steps = whole("training.steps");
    int64_t warmup = whole("lr_scheduler.warmup_steps");
    if (warmup >= steps) {
      warmup = std::max<int64_t>(steps - 1, 0);
      result_.notes.push_back(fmt::format("{} is not below training.steps {}: it is {} here",
                                          said("lr_scheduler.warmup_steps"), steps, warmup));
    }
    set("lr_scheduler.warmup_steps", "lr_warmup_iters", std::to_string(warmup));
    if (is_written("lr_scheduler.total_steps")) set_as("lr_scheduler.total_steps", "lr_decay_iters");
    const double least = number("optimizer.lr") * number("lr_scheduler.min_lr_factor");
    set("lr_scheduler.min_lr_factor", "min_lr", number_text(least));
    const std::string type = text("lr_scheduler.decay_type");
    if (type != "linear" && type != "sqrt" && type != "cosine") {
      refuse("lr_scheduler.decay_type", "linear, sqrt, cosine");
    }
    const std::string_view ratio = "lr_scheduler.decay_ratio";
    if (!is_written(ratio) && type != "sqrt") {
      return set("lr_scheduler.decay_type", "lr_decay_style", type);
    }
    const int64_t decay = is_written(ratio) ? std::llround(static_cast<double>(steps) * number(ratio)) : steps - warmup;
    if (decay <= 0) return set(ratio, "lr_decay_style", "constant");
    set(ratio, "lr_decay_style", "WSD");
    set(ratio, "lr_wsd_decay_iters", std::to_string(decay));
    set("lr_scheduler.decay_type", "lr_wsd_decay_style", type == "sqrt" ? "minus_sqrt" : type);
  }

  void choose_precision() {
    const std::string_view key = "training.mixed_precision_param";
    const std::string precision = text(key);
    if (precision != "bfloat16" && precision != "float32") refuse(key, "bfloat16, float32");
    set(key, precision == "bfloat16" ? "bf16" : "fp32", "true");
    const std::string reduced = text("training.mixed_precision_reduce");
    if (reduced != "float32" && reduced != "bfloat16") refuse("training.mixed_precision_reduce", "float32, bfloat16");
    if (reduced == "bfloat16") set("training.mixed_precision_reduce", "grad_reduce_in_bf16", "true");
    const auto converters = values_.find("model.converters");
    if (converters == values_.end()) return;
    for (const std::string& converter : converters->second.items) {
      if (converter != "float8" && converter != "quantize.linear.float8") refuse("model.converters", "float8");
      const std::string_view recipe = written_of({"quantize.linear.float8.recipe_name", "float8.recipe_name"});
      if (text(recipe) != "tensorwise" && text(recipe) != "none") {
        refuse(recipe, "tensorwise", "see --fp8_recipe for what there is here");
      }
      set("model.converters", "fp8_format", "hybrid");
      set("model.converters", "fp8_recipe", "tensorwise");
    }
  }

  void choose_sharding() {
    const int64_t sharded = whole("parallelism.data_parallel_shard_degree");
    const int64_t copies = whole("parallelism.data_parallel_replicate_degree");
    const std::string_view shards = "parallelism.data_parallel_shard_degree";
    if (sharded != 1) {
      if (whole("parallelism.pipeline_parallel_degree") > 1) {
        for (const char* option : {"use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"}) {
          set(shards, option, "true");
        }
        result_.notes.push_back(
            fmt::format("{}: with a pipeline only the optimizer's state is divided over these ranks", said(shards)));
      } else {
        set(shards, "use_torch_fsdp2", "true");
      }
      if (copies > 1) {
        set_as("parallelism.data_parallel_replicate_degree", "num_distributed_optimizer_instances");
      }
    }
    const std::string reshard = text("parallelism.fsdp_reshard_after_forward");
    if (reshard != "default" && reshard != "always" && reshard != "never") {
      refuse("parallelism.fsdp_reshard_after_forward", "default, always, never");
    }
    if (reshard == "never" && whole("parallelism.pipeline_parallel_degree") <= 1) {
      set("parallelism.fsdp_reshard_after_forward", "torch_fsdp2_reshard_after_forward", "false");
    }
    if (text("training.enable_cpu_offload") == "true") {
      const bool is_fsdp = sharded != 1 && whole("parallelism.pipeline_parallel_degree") <= 1;
      set("training.enable_cpu_offload", is_fsdp ? "fsdp_cpu_offload" : "optimizer_cpu_offload", "true");
    }
    set_as("parallelism.tensor_parallel_degree", "tensor_model_parallel_size");
    if (whole("parallelism.tensor_parallel_degree") > 1) {
      set("parallelism.tensor_parallel_degree", "sequence_parallel", "true");
    }
    if (whole("parallelism.context_parallel_degree") > 1) {
      const std::string method = text("parallelism.context_parallel_rotate_method");
      if (method != "allgather" && method != "alltoall") {
        refuse("parallelism.context_parallel_rotate_method", "allgather, alltoall");
      }
      set("parallelism.context_parallel_rotate_method", "cp_comm_type", method == "allgather" ? "all_gather" : "p2p");
    }
  }

  void choose_pipeline() {
    set_as("parallelism.pipeline_parallel_degree", "pipeline_model_parallel_size");
    if (whole("parallelism.pipeline_parallel_degree") <= 1) return;
    static const std::map<std::string, std::pair<const char*, bool>> schedules = {
        {"1f1b", {"1f1b", false}},
        {"gpipe", {"gpipe", false}},
        {"interleaved1f1b", {"1f1b-interleaved", true}},
        {"zbvzerobubble", {"zbv-formatted", false}},
        {"zbv", {"zbv-formatted", false}},
    };
    const std::string_view key = "parallelism.pipeline_parallel_schedule";
    const auto found = schedules.find(lower_case(text(key)));
    if (found == schedules.end()) {
      refuse(key, "1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble", "see --pp_algorithm for what there is here");
    }
    set(key, "pp_algorithm", found->second.first);
    // torchtitan gives each rank two stages where a schedule takes several.
    if (found->second.second) set(key, "num_virtual_stages_per_pipeline_rank", "2");
  }

  void choose_recomputation() {
    const std::string_view key = "activation_checkpoint.mode";
    const std::string mode = text(key);
    if (mode == "none") return;
    if (mode == "full") {
      set(key, "recompute_granularity", "full");
      set(key, "recompute_method", "uniform");
      return set(key, "recompute_num_layers", "1");
    }
    if (mode != "selective") refuse(key, "none, selective, full", "see --recompute_granularity");
    set(key, "recompute_granularity", "selective");
    result_.notes.push_back(
        fmt::format("{}, selective_ac_option {}: what is large and cheap is computed again; "
                    "--recompute_modules chooses",
                    said(key), text("activation_checkpoint.selective_ac_option")));
  }

  void choose_data() {
    if (!text("training.dataset_path").empty()) {
      set_as("training.dataset_path", "data_path");
    } else {
      result_.notes.push_back(
          fmt::format("{}: a data set is not looked up by torchtitan's name; --data_path names texts or tokens, "
                      "--mock_data trains on made-up ones",
                      said("training.dataset")));
    }
    const std::string_view tokenizer = written_of({"model.hf_assets_path", "model.tokenizer_path"});
    if (!text(tokenizer).empty()) set_as(tokenizer, "tokenizer_model");
    if (!is_on("validation.enable")) return set("validation.enable", "eval_iters", "0");
    set_as("validation.freq", "eval_interval");
    if (whole("validation.steps") < 0) {
      refuse("validation.steps", "a number of steps", "an evaluation of all data is not made during a run");
    }
    set_as("validation.steps", "eval_iters");
    if (!text("validation.dataset_path").empty()) set_as("validation.dataset_path", "valid_data_path");
  }

  std::string in_dump_folder(std::string_view key) const {
    return (fs::path(text("job.dump_folder")) / text(key)).lexically_normal().string();
  }

  void choose_checkpoints() {
    const std::string_view enable = written_of({"checkpoint.enable", "checkpoint.enable_checkpoint"});
    const std::string_view begin = "checkpoint.initial_load_path";
    if (!is_on(enable)) return;
    set(enable, "save", in_dump_folder("checkpoint.folder"));
    set(enable, "auto_continue_train", "true");
    set_as("checkpoint.interval", "save_interval");
    if (whole("checkpoint.keep_latest_k") > 0) set_as("checkpoint.keep_latest_k", "keep_last");
    const std::string mode = text("checkpoint.async_mode");
    if (mode != "disabled" && mode != "async" && mode != "async_with_pinned_mem") {
      refuse("checkpoint.async_mode", "disabled, async, async_with_pinned_mem");
    }
    if (mode != "disabled") set("checkpoint.async_mode", "async_save", "true");
    if (is_on("checkpoint.last_save_in_hf")) {
      set("checkpoint.last_save_in_hf", "save_hf", in_dump_folder("checkpoint.folder") + "/hf");
    }
    if (text(begin).empty()) return;
    if (!is_on("checkpoint.initial_load_in_hf")) {
      throw UserError(fmt::format("{}: checkpoints of torchtitan are not read", said(begin)),
                      "export it to Hugging Face's form, and set checkpoint.initial_load_in_hf = true");
    }
    set_as(begin, "load_hf");
  }

  void choose_outputs() {
    const std::string_view traces = "profiling.enable_profiling", board = "metrics.enable_tensorboard";
    if (is_on(board)) set(board, "tensorboard_dir", in_dump_folder("metrics.save_tb_folder"));
    if (is_on("metrics.enable_wandb")) set("metrics.enable_wandb", "wandb_project", "torchtitan");
    if (is_on(traces)) {
      const int64_t end = whole("profiling.profile_freq");
      set(traces, "profile", "true");
      set("profiling.profile_freq", "profile_step_end", std::to_string(end));
      set("profiling.profiler_active", "profile_step_start",
          std::to_string(std::max<int64_t>(end - whole("profiling.profiler_active"), 0)));
      if (!is_on(board)) set(traces, "tensorboard_dir", in_dump_folder("profiling.save_traces_folder"));
    }
    const std::string_view seed = written_of({"debug.seed", "training.seed"});
    if (!text(seed).empty()) set_as(seed, "seed");
    const std::string_view fixed = written_of({"debug.deterministic", "training.deterministic"});
    if (!text(fixed).empty() && is_on(fixed)) set(fixed, "deterministic_mode", "true");
    const std::string_view wait = "comm.train_timeout_seconds";
    if (is_written(wait)) set(wait, "distributed_timeout_minutes", number_text(number(wait) / 60));
  }

  void name_useless_keys() {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_) {
      if (torchtitan_keys().find(name)->kind == FileKeyKind::kNoEffect) names.push_back(name);
    }
    if (names.empty()) return;
    result_.notes.push_back(
        fmt::format("{}: without a counterpart here, and so without effect: {}", file_.string(), join(names, ", ")));
  }

  const fs::path file_, root_;
  const EnvironmentMap& environment_;
  JobValues values_;
  ConfigFile result_;
};

}  // namespace

ConfigFile read_torchtitan_job(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment) {
  return JobFileReader(file, config_root, environment).read();
}

}  // namespace megalith
