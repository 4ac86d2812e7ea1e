// See launch_rules.h: Primus's experiment file, processes, logs and exports.
#include "compat/launch_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/strings.h"
#include "launch/launch.h"
#include "launch/network.h"

namespace megalith {
namespace {

constexpr std::string_view kPrimusFiles = "examples/megatron/configs";

std::string variable_of(const LaunchInputs& inputs, const std::string& name) {
  const auto found = inputs.environment.find(name);
  return found == inputs.environment.end() ? "" : found->second;
}

// True under srun with a task per machine, where Slurm says which machine this is.
bool is_slurm_task(const LaunchInputs& inputs) {
  return !variable_of(inputs, "SLURM_STEP_ID").empty() && !variable_of(inputs, "SLURM_NODEID").empty();
}

std::optional<int> slurm_nodes(const LaunchInputs& inputs) {
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const int count = std::atoi(variable_of(inputs, name).c_str());
    if (count > 0) return count;
  }
  return std::nullopt;
}

void take_slurm_place(const LaunchInputs& inputs, LaunchPlan& plan) {
  plan.node_rank = std::atoi(variable_of(inputs, "SLURM_NODEID").c_str());
  plan.num_nodes = slurm_nodes(inputs).value_or(plan.num_nodes);
  std::string hosts = variable_of(inputs, "SLURM_STEP_NODELIST");
  if (hosts.empty()) hosts = variable_of(inputs, "SLURM_JOB_NODELIST");
  if (plan.master_address == "localhost" && !hosts.empty()) plan.master_address = first_slurm_host(hosts);
  plan.notes.push_back(
      fmt::format("Slurm: machine {} of {}, which meet at {}", plan.node_rank, plan.num_nodes, plan.master_address));
}

void check_devices(const ScriptValue* given, const LaunchInputs& inputs, LaunchPlan& plan) {
  if (given == nullptr) return;
  const int most = plan.num_gpus > 0 ? plan.num_gpus : inputs.num_processors;
  if (plan.ranks_per_node <= most) return;
  plan.errors.emplace_back(fmt::format("{}: this machine has {} {}", given->text(), most,
                                       plan.num_gpus > 0 ? "GPUs" : "processors, and no GPU"),
                           fmt::format("set {} to at most {}, or leave it out", given->spelling, most));
}

}  // namespace

void plan_primus_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  plan.set_fixed();
  const ScriptValue* file = values.given("EXP");
  if (file == nullptr) {
    plan.errors.emplace_back("EXP is not set",
                             fmt::format("name an experiment file: EXP={}/llama3.1_8B-pretrain.yaml", kPrimusFiles));
    return;
  }
  plan.config = file->value;
  if (inputs.exists(file->value)) return;
  const std::filesystem::path path(file->value);
  std::vector<std::string> names;
  for (const std::string& folder : {path.parent_path().string(), std::string(kPrimusFiles)}) {
    if (names.empty() && inputs.files_of) names = inputs.files_of(folder);
  }
  const std::string nearest = nearest_word(path.filename().string(), names);
  plan.errors.emplace_back(
      fmt::format("{}: there is no such file.{}", file->text(),
                  nearest.empty() ? "" : fmt::format(" Did you mean {}?", (path.parent_path() / nearest).string())),
      "EXP is an experiment file, from the folder in which the script is started");
}

void plan_ranks(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  const bool is_dry = plan.dry_run != DryRunKind::kNone;
  // A toy runs here: a script's use of Slurm and of many machines is then only a default.
  const bool is_toy = values.is_on("TINY");
  plan.num_nodes = is_toy && values.given("NNODES") == nullptr ? 1 : values.count("NNODES");
  const bool asks_slurm = values.is_on("SLURM") && !(is_toy && values.given("SLURM") == nullptr);
  plan.node_rank = values.count("NODE_RANK");
  plan.master_address = values.text("MASTER_ADDR");
  plan.master_port = values.count("MASTER_PORT");
  plan.has_port = values.given("MASTER_PORT") != nullptr;
  plan.image = values.text("DOCKER_IMAGE");
  if (values.find("CPUS_PER_TASK") != nullptr) plan.processors_per_task = values.count("CPUS_PER_TASK");
  const ScriptValue* ranks = values.given("GPUS_PER_NODE");
  if (const ScriptValue* flag = values.given("-n")) {
    if (ranks != nullptr && ranks->value != flag->value) {
      plan.errors.emplace_back(fmt::format("{} and {} disagree about the number of GPUs", flag->text(), ranks->text()),
                               "keep one of them");
    }
    ranks = flag;
  }
  const ScriptValue* own = ranks != nullptr ? ranks : values.find("GPUS_PER_NODE");
  plan.ranks_per_node = own != nullptr ? std::atoi(own->value.c_str()) : std::max(plan.num_gpus, 1);
  const bool is_inside_task = is_slurm_task(inputs), is_task = !is_dry && is_inside_task;
  const bool is_batch = !variable_of(inputs, "SLURM_JOB_ID").empty() && slurm_nodes(inputs).value_or(1) > 1;
  if (is_task && (asks_slurm || slurm_nodes(inputs).value_or(1) > 1)) take_slurm_place(inputs, plan);
  const bool needs_slurm = !is_inside_task && (asks_slurm || is_batch);
  plan.uses_slurm = !is_dry && needs_slurm;
  if (needs_slurm && is_batch && values.given("NNODES") == nullptr) plan.num_nodes = *slurm_nodes(inputs);
  plan.uses_container = !is_dry && !plan.uses_slurm && (values.is_on("CONTAINER") || (is_task && !plan.image.empty()));
  // Inside its own container no other is started.
  if (!variable_of(inputs, "MEGALITH_IN_CONTAINER").empty()) {
    plan.uses_container = false;
  } else if (is_dry) {
    plan.would_use_slurm = needs_slurm;
    // Slurm's tasks take a container if an image is named.
    plan.would_use_container = values.is_on("CONTAINER") || (plan.would_use_slurm && !plan.image.empty());
  }
  if (plan.node_rank >= plan.num_nodes) {
    plan.errors.emplace_back(fmt::format("NODE_RANK={} is not below NNODES={}", plan.node_rank, plan.num_nodes),
                             "machines are numbered from 0");
  }
  if (is_dry || plan.uses_slurm || plan.uses_container) return;
  if (plan.num_nodes > 1 && (plan.master_address == "localhost" || is_loopback_address(plan.master_address))) {
    plan.errors.emplace_back(
        fmt::format("NNODES={} needs MASTER_ADDR, and it is {}", plan.num_nodes, plan.master_address),
        "set MASTER_ADDR to the name or address of machine 0, the same on all machines");
  }
  check_devices(ranks, inputs, plan);
}

void plan_log(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  plan.tees = values.find("TEE_OUTPUT") == nullptr || values.is_on("TEE_OUTPUT");
  if (const ScriptValue* log = values.given("TRAIN_LOG")) {
    plan.train_log = log->value;
  } else if (plan.benchmark) {
    plan.train_log = plan.benchmark->log;
    return;
  } else if (has(kPrimusScripts, plan.front_end)) {
    const std::string folder = values.given("LOG_DIR") ? values.text("LOG_DIR") : "output";
    const std::string stem = std::filesystem::path(plan.config).stem().string();
    plan.train_log = fmt::format("{}/log_torchrun_pretrain_{}.txt", folder, stem);
    return;
  }
  if (has(kBenchmarkScripts | kStanfordScripts, plan.front_end)) return;
  std::string folder = values.text("LOG_DIR");
  if (folder.empty()) {
    const auto value = [&](std::string_view option) {
      const PlannedOption* found = plan.find(option);
      return found == nullptr ? std::string("1") : found->value;
    };
    std::string size = values.given("MODEL_SIZE") ? lower_case(values.text("MODEL_SIZE")) : "";
    if (size.ends_with('b')) size.pop_back();
    if (size.empty() && !row_of(plan.front_end).sizes.empty()) size = row_of(plan.front_end).sizes.front().size;
    folder =
        fmt::format("experiment/{}nodes_rank{}_train_{}B_mbs{}_bs{}_tp{}_pp{}_cp{}_iter{}/TE_FP8_{}/{}", plan.num_nodes,
                    plan.node_rank, size, value("micro_batch_size"), value("global_batch_size"),
                    value("tensor_model_parallel_size"), value("pipeline_model_parallel_size"),
                    value("context_parallel_size"), value("train_iters"), plan.find("fp8_format") ? 1 : 0, inputs.now);
  }
  if (plan.find("profile") != nullptr) plan.set({.name = "tensorboard_dir", .value = folder});
  if (!plan.train_log) plan.train_log = fmt::format("{}/output_{}.log", folder, values.text("EXP_NAME"));
}

void plan_exports(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan) {
  const bool is_fsdp = plan.find("use_torch_fsdp2") != nullptr;
  for (const ScriptValue& one : values.all()) {
    if (one.variable->kind != VariableKind::kExported) continue;
    if (one.variable->name() == "CUDA_DEVICE_MAX_CONNECTIONS" && is_fsdp && one.is_default) {
      continue;  // gathers must not queue with matrix products
    }
    plan.exports.push_back({std::string(one.variable->name()), one.value,
                            one.is_default ? "the script's own value" : "as it was set", !one.variable->is_secret});
  }
  for (const auto& [name, value] : values.other_exports()) {
    plan.exports.push_back({name, value, "of .env", /*is_shown=*/false});
  }
  if (has(kPrimusScripts, plan.front_end) && variable_of(inputs, "HIP_VISIBLE_DEVICES").empty() && plan.num_gpus > 0) {
    std::vector<int> devices;
    for (int i = 0; i < plan.ranks_per_node; ++i) devices.push_back(i);
    plan.exports.push_back({"HIP_VISIBLE_DEVICES", fmt::format("{}", fmt::join(devices, ",")), "every rank's own"});
  }
}

}  // namespace megalith
