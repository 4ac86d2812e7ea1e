// megalith launch: implements other tools' scripts. The scripts of examples/ are thin wrappers for it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/build_commit.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/prepare_flux.h"
#include "cli/print.h"
#include "compat/benchmark_results.h"
#include "compat/benchmark_setup.h"
#include "compat/benchmark_wikitext.h"
#include "compat/launch_network.h"
#include "compat/launch_plan.h"
#include "compat/launch_process.h"
#include "compat/launch_report.h"
#include "compat/migration.h"
#include "compat/tiny.h"
#include "core/file.h"
#include "core/host.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/device.h"
#include "device/machine.h"
#include "device/peak_flops.h"
#include "kinds/kinds.h"
#include "launch/store_secret.h"
#include "train/dry_run.h"
#include "train/run_record.h"

namespace megalith {
namespace {

constexpr const char* kLaunchUsage =
    "usage: megalith launch NAME [KEY=VALUE ...] [--option value ...]\n\n"
    "Starts a run as the scripts of other tools do, by their variables. 'megalith launch NAME --help' lists them.";

struct LaunchOptions {
  bool markdown = false, migration = false;

  void visit(OptionVisitor& v) {
    v.group("Launch");
    v.field("markdown", markdown, "Print the page docs/scripts.md.");
    v.field("migration", migration, "Print the page docs/migration.md.");
  }
};

// "2025-06-01_12-00-00"
std::string folder_timestamp() {
  std::string text = local_timestamp();
  for (char& c : text) c = c == ' ' ? '_' : c == ':' ? '-' : c;
  return text;
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

LaunchInputs launch_inputs(const CommandContext& context, FrontEnd front_end, std::vector<std::string> words) {
  LaunchInputs inputs;
  inputs.front_end = front_end;
  inputs.environment = context.environment;
  inputs.words = std::move(words);
  inputs.now = folder_timestamp();
  inputs.tree = context.config_root.parent_path().string() + "/";
  inputs.num_processors = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  inputs.count_gpus = accelerator_count;
  inputs.exists = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  inputs.files_of = files_of;
  if (inputs.exists(".env")) inputs.env_file = read_file(".env");
  return inputs;
}

// Includes the plan's exports, such as HF_HOME and HF_TOKEN.
EnvironmentMap hub_environment(const CommandContext& context, const LaunchPlan& plan) {
  EnvironmentMap environment = context.environment;
  for (const PlannedExport& one : plan.exports) environment[one.name] = one.value;
  return environment;
}

// The configuration as the trainer will read it, for this world; a dry run does not ask the hub.
ConfigInputs trainer_inputs(const CommandContext& context, const LaunchPlan& plan,
                            const std::vector<std::string>& arguments) {
  ConfigInputs inputs = context.config_inputs();
  inputs.others.here = "train";
  inputs.others.acts = nullptr;
  inputs.arguments = arguments;
  inputs.arguments.emplace_back("--dry_run=true");
  const auto names_device = [](const std::string& word) {
    return word.starts_with("--") && fold_name(word.substr(2)).starts_with("dry_run_device");
  };
  // Scripts name an architecture too (gfx942), which is no one GPU.
  for (const char* name : {"GPU_ARCH", "PRIMUS_GPU_ARCH", "PRIMUS_GPU_MODEL"}) {
    const auto said = context.environment.find(name);
    if (said == context.environment.end() || !known_gpu(said->second)) continue;
    if (std::ranges::none_of(arguments, names_device)) {
      inputs.arguments.push_back("--dry_run_device=" + known_gpu(said->second)->name);
    }
    break;
  }
  inputs.arguments.push_back(fmt::format("--dry_run_world_size={}", plan.world_size()));
  inputs.environment = hub_environment(context, plan);
  if (plan.dry_run != DryRunKind::kNone) inputs.environment["HF_HUB_OFFLINE"] = "1";
  return inputs;
}

// Resolves the plan, adding configuration errors in the user's words.
std::unique_ptr<Resolved> resolve_plan(const CommandContext& context, const LaunchPlan& plan,
                                       const std::vector<std::string>& arguments, std::vector<UserError>& errors) {
  const size_t num_errors = errors.size();
  try {
    return resolve_config(all_kinds(), trainer_inputs(context, plan, arguments), plan.world_size());
  } catch (const UserErrors& several) {
    for (const UserError& error : several.errors()) errors.push_back(in_users_words(error, plan));
  } catch (const UserError& error) {
    errors.push_back(in_users_words(error, plan));
  }
  MEGALITH_CHECK(errors.size() > num_errors, "a configuration was refused without a word");
  return nullptr;
}

// Appends a toy's sizes to all other arguments.
std::vector<std::string> tiny_arguments(const CommandContext& context, const LaunchPlan& plan,
                                        std::vector<std::string> arguments, std::vector<UserError>& errors) {
  Resolved first(all_kinds());
  try_resolve(*first.options, trainer_inputs(context, plan, arguments));
  for (std::string& word : fitting_layout(first.config.parallel, plan.world_size())) {
    arguments.push_back(std::move(word));
  }
  const std::unique_ptr<Resolved> whole = resolve_plan(context, plan, arguments, errors);
  if (whole == nullptr) return arguments;
  const TinyRun tiny = make_tiny(*whole);
  context.log.info("{}", tiny.note);
  arguments.insert(arguments.end(), tiny.options.begin(), tiny.options.end());
  return arguments;
}

// "MI300X", the driver's name of the first GPU; "cpu" if there is none.
std::string device_name() {
  if (accelerator_count() == 0) return "cpu";
  const GpuFacts gpus = read_gpus("/");
  std::string name = gpus.devices.empty() ? "GPU" : gpus.devices.front().name;
  std::erase(name, ',');
  return name;
}

// Checks that results can be written and that figures will come only from this run's lines.
void prepare_benchmark(const LaunchPlan& plan) {
  check_results_folder(*plan.benchmark);
  std::error_code ignored;
  if (!is_standard_output(*plan.train_log)) std::filesystem::remove(*plan.train_log, ignored);
}

void append_line(const std::string& file, const std::string& line) {
  if (is_standard_output(file)) return;
  std::ofstream(file, std::ios::app) << line << '\n';
}

// Makes a benchmark's rows if they are missing.
void make_rows(const CommandContext& context, const LaunchPlan& plan) {
  if (!plan.benchmark || plan.benchmark->made_rows.empty() || !plan.starts) return;
  ensure_wikitext(plan.benchmark->made_rows, hub_environment(context, plan), context.log);
}

// Prints and writes the figures of a finished benchmark.
void report_benchmark(const CommandContext& context, const LaunchPlan& plan, const Resolved& resolved) {
  const BenchmarkRun& run = *plan.benchmark;
  BenchmarkFigures figures = read_benchmark_figures(run.backend, read_file(*plan.train_log));
  if (run.mode == "HF_finetune_lora") add_sample_rate(figures, resolved);
  if (!figures.note.empty()) context.log.note("{}", figures.note);
  const std::string earlier = std::filesystem::exists(run.results) ? read_file(run.results) : "";
  write_file_atomic(run.results, benchmark_csv(run, figures, resolved, {device_name(), kBuildCommit}, earlier));
  if (!figures.summary.empty()) write_file_atomic(kRunsSummaryFile, figures.summary);
  for (const std::string& line : figures.lines) {
    print_out("{}\n", line);
    append_line(*plan.train_log, line);  // read there by AMD's own reader
  }
  for (const auto& [metric, value] : figures.metrics) print_out("performance: {:.6g} {}\n", value, metric);
  context.log.info("results: {}", run.results);
}

void say_plan(const CommandContext& context, const LaunchPlan& plan) {
  for (const std::string& note : plan.notes) context.log.info("{}", note);
  context.log.info("ranks: {} on {} machine(s)", plan.world_size(), plan.num_nodes);
}

// Variables that a container takes over.
std::vector<std::string> container_variables(const CommandContext& context) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : context.environment) {
    if (find_script_variable(name) != nullptr || name.starts_with("PRIMUS_")) variables.push_back(name);
  }
  return variables;
}

// This command again, on Slurm's machines or in a container.
std::vector<std::string> elsewhere_command(const CommandContext& context, const LaunchPlan& plan, bool on_slurm,
                                           const LaunchTools& tools, const std::vector<std::string>& words) {
  return on_slurm ? slurm_command(plan, tools, words, context.environment.contains("SLURM_JOB_ID"))
                  : container_command(plan, tools, words, container_variables(context));
}

int start_elsewhere(CommandContext& context, const LaunchPlan& plan, const std::vector<std::string>& words) {
  const LaunchTools tools = find_launch_tools(context.environment);
  const std::vector<std::string> command = elsewhere_command(context, plan, plan.uses_slurm, tools, words);
  context.log.info("starting: {}", shell_text(command));
  return run_and_wait(command, std::nullopt);
}

// A dry run's commands by their names in its JSON: what leads to the machines, and what starts there.
std::vector<std::pair<std::string, std::vector<std::string>>> planned_commands(
    const CommandContext& context, const LaunchPlan& plan, const std::vector<std::string>& words,
    const std::vector<std::string>& arguments) {
  LaunchTools tools = find_launch_tools(context.environment);
  if (!tools.torchrun) tools.torchrun = "torchrun";
  if (!tools.container_tool) tools.container_tool = "docker";
  std::vector<std::string> again;
  for (const std::string& word : words) {
    if (!word.starts_with("DRY_RUN=")) again.push_back(word);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;
  if (plan.would_use_slurm) {
    commands.emplace_back("slurm_command", elsewhere_command(context, plan, /*on_slurm=*/true, tools, again));
  }
  if (plan.would_use_container) {
    commands.emplace_back("container_command", elsewhere_command(context, plan, /*on_slurm=*/false, tools, again));
  }
  commands.emplace_back("command", training_command(plan, tools, arguments));
  return commands;
}

// run.json next to the log, for `megalith verify`; nothing if something else has that name, or the log is not a file.
std::optional<std::string> record_beside(const CommandContext& context, const std::filesystem::path& log) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(log, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return std::nullopt;
  const std::string file = (log.parent_path() / "run.json").string();
  try {
    if (std::filesystem::exists(file, error)) read_run_record(file);
  } catch (const UserError&) {
    context.log.note("{} is not the record of a run, and is left as it is: this run gets none", file);
    return std::nullopt;
  }
  return file;
}

bool says(const std::vector<std::string>& arguments, std::string_view option) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& word) {
    const std::string name = fold_name(word.substr(0, word.find('=')));
    return name == option || name == fmt::format("__{}", option);
  });
}

int start_training(CommandContext& context, LaunchPlan& plan, std::vector<std::string> arguments) {
  const LaunchTools tools = find_launch_tools(context.environment);
  std::vector<PlannedExport> chosen;
  if (plan.num_nodes > 1) chosen = choose_network_exports(plan, context.environment, this_host());
  for (const PlannedExport& one : chosen) {
    context.log.info("{}={}: {}", one.name, one.value, one.reason);
    plan.exports.push_back(one);
  }
  const bool is_redirected = plan.train_log && is_standard_output(*plan.train_log);
  if (plan.train_log && !is_redirected) {
    const std::filesystem::path folder = std::filesystem::path(*plan.train_log).parent_path();
    if (!folder.empty()) make_directories(folder);
    if (plan.tees) arguments.insert(arguments.end(), {"--log_file", *plan.train_log});
    context.log.info("{}: {}", plan.tees ? "the log is also written to" : "TEE_OUTPUT=0: the log is written only to",
                     *plan.train_log);
  }
  if (plan.train_log && !says(arguments, "record_file")) {
    const auto record = record_beside(context, *plan.train_log);
    if (record) arguments.insert(arguments.end(), {"--record_file", *record});
  }
  const std::vector<std::string> command = training_command(plan, tools, arguments);
  for (const PlannedExport& one : plan.exports) ::setenv(one.name.c_str(), one.value.c_str(), /*overwrite=*/1);
  // On one machine whose port others may reach. For several machines the user provides the same file.
  constexpr const char* kSecretVariable = "MEGALITH_STORE_SECRET_FILE";
  std::optional<StoreSecretFile> secret;
  if (plan.num_nodes == 1 && plan.world_size() > 1 && !context.environment.contains(kSecretVariable)) {
    secret.emplace();
    ::setenv(kSecretVariable, secret->path().c_str(), /*overwrite=*/1);
  }
  const bool is_primus = has(kPrimusScripts, plan.front_end);
  if (is_primus) {
    print_out("{}Launching distributed training with command: {}\n", primus_banner(plan, host_name()),
              shell_text(command));
    std::fflush(stdout);
  } else {
    context.log.info("starting: {}", shell_text(command));
  }
  const bool hides = !plan.tees && plan.train_log && !is_redirected;
  const int code = run_and_wait(command, hides ? plan.train_log : std::nullopt);
  if (is_primus) {
    print_out("torchrun exited with code {}\n", code);
    if (code >= 128) print_out("crashed due to signal {}\n", code - 128);
  }
  return code;
}

int launch(CommandContext& context, FrontEnd front_end, const std::vector<std::string>& words) {
  LaunchPlan plan = plan_launch(launch_inputs(context, front_end, words));
  say_plan(context, plan);
  std::vector<UserError> errors = plan.errors;
  const bool is_dry = plan.dry_run != DryRunKind::kNone;
  if (!is_dry && errors.empty()) make_rows(context, plan);
  // The command shown by a dry run reads weights and rows; resolving does not look for them.
  std::vector<std::string> arguments = is_dry ? plan.arguments_without_inputs() : plan.arguments();
  std::vector<std::string> shown = plan.arguments();
  const size_t num_shown = arguments.size();
  std::unique_ptr<Resolved> resolved;
  // Stanford's scripts describe the model in words.
  const bool has_config = has(kStanfordScripts, plan.front_end) ||
                          (!plan.config.empty() && (!has(kPrimusScripts, plan.front_end) || errors.empty()));
  if (has_config && !plan.uses_slurm && !plan.uses_container) {
    if (plan.is_tiny) arguments = tiny_arguments(context, plan, std::move(arguments), errors);
    if (!plan.is_tiny || errors.empty()) resolved = resolve_plan(context, plan, arguments, errors);
  }
  throw_if_any(errors);
  if (is_dry) {
    shown.insert(shown.end(), arguments.begin() + static_cast<std::ptrdiff_t>(num_shown), arguments.end());
    const DryRun run = make_dry_run(*resolved, context.config_root);
    const auto commands = planned_commands(context, plan, words, shown);
    for (const std::string& note : resolved->notes) context.log.note("{}", note);
    if (plan.dry_run == DryRunKind::kJson) {
      print_out("{}", dry_run_json(plan, *resolved, run, commands));
    } else {
      for (const PlannedExport& one : plan.exports) {
        if (one.is_shown) print_out("export {}={}\n", one.name, shell_text({one.value}));
      }
      for (const auto& [name, command] : commands) {
        print_out("would start{}: {}\n",
                  name == "slurm_command"       ? " on Slurm's machines"
                  : name == "container_command" ? " in a container"
                                                : "",
                  shell_text(command));
      }
      print_out("{}", dry_run_text(*resolved, run));
    }
    return kExitSuccess;
  }
  if (!plan.starts) {
    context.log.info("NO_TRAINING=1: nothing is started");
    return kExitSuccess;
  }
  if (plan.uses_slurm || plan.uses_container) return start_elsewhere(context, plan, words);
  if (plan.benchmark) prepare_benchmark(plan);
  const int code = start_training(context, plan, std::move(arguments));
  if (code == kExitSuccess && plan.benchmark && plan.node_rank == 0) report_benchmark(context, plan, *resolved);
  return code;
}

const FrontEndRow& named_front_end(const std::string& name) {
  if (const FrontEndRow* row = find_front_end(name)) return *row;
  std::vector<std::string> names;
  for (const FrontEndRow& row : front_ends()) names.emplace_back(row.name);
  const std::string nearest = nearest_word(name, names);
  throw UserError(
      fmt::format("launch knows no '{}'.{}", name, nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)),
      fmt::format("the names are {}", names_of(kAllFrontEnds)));
}

}  // namespace

int run_launch(CommandContext& context) {
  const bool has_name = !context.arguments.empty() && !context.arguments[0].starts_with("-");
  if (!has_name) {
    LaunchOptions options;
    OptionSet set(options);
    const Resolution resolution = resolve(set, context.config_inputs());
    if (resolution.wants_help) {
      return print_help(context, fmt::format("{}\n\nnames: {}", kLaunchUsage, names_of(kAllFrontEnds)), set);
    }
    if (!options.markdown && !options.migration) {
      throw UserError("launch takes the name of a front end, and got none",
                      fmt::format("the names are {}", names_of(kAllFrontEnds)));
    }
    if (options.markdown) print_out("{}", scripts_page());
    if (options.migration) print_out("{}", migration_page());
    return kExitSuccess;
  }
  const FrontEndRow& row = named_front_end(context.arguments[0]);
  if (context.wants_help()) {
    print_out("{}", front_end_help(row.id));
    return kExitSuccess;
  }
  if (row.id == FrontEnd::kBenchmarkSetup) {
    const std::vector<std::string> words(context.arguments.begin() + 1, context.arguments.end());
    if (const auto flux = set_up_benchmarks(launch_inputs(context, row.id, words), context.log)) {
      prepare_pictures_once(flux->pictures, flux->model, kPreparedPictures, context.log);
    }
    return kExitSuccess;
  }
  return launch(context, row.id, {context.arguments.begin() + 1, context.arguments.end()});
}

std::vector<CommandOptions> launch_options() { return {options_of<LaunchOptions>("launch")}; }

}  // namespace megalith
