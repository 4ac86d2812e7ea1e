// megalith doctor: checks that this machine, or all machines of a launch, are fit for a run.
//
// Findings of many small checks, grouped by topic, as a list or as JSON. Exit code 0 if none is an error, else 1.
// Modelled on Primus's preflight; requirements come from its guides, Megatron-LM's for ROCm and CVS's.
#include "cli/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "cli/doctor_parallel.h"
#include "cli/doctor_types.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "config/option_value.h"
#include "core/host.h"
#include "device/device.h"
#include "device/threads.h"
#include "kinds/kinds.h"

namespace megalith {
namespace {

constexpr const char* kDoctorUsage =
    "usage: megalith doctor [--json] [--collectives] [--bench] [--hub] [--config FILE and any options of train]\n"
    "       megalith doctor --parallel …   the configured layout against one rank; '--parallel --help' says more\n"
    "       megalith doctor --types …      the layout's distributions, by shapes; '--types --help' says more\n"
    "       megalith preflight | node_smoke …   the same by Primus's words, with its report\n\n"
    "Started by torchrun, srun or mpirun, all ranks check their machines and then their collectives.";

constexpr std::array<std::string_view, 12> kDoctorTopics = {"devices",       "memory",      "versions", "ports",
                                                            "shared memory", "NUMA",        "limits",   "disk",
                                                            "data",          "environment", "speed",    "collectives"};

// The message size of AMD's figures, which is also a row of the table.
constexpr int64_t kBenchMessage_mib = 1024;

// Stable sort by topic.
void sort_by_topic(Findings& findings) {
  const auto place = [](const Finding& finding) {
    return std::find(kDoctorTopics.begin(), kDoctorTopics.end(), finding.topic) - kDoctorTopics.begin();
  };
  std::stable_sort(findings.begin(), findings.end(),
                   [&](const Finding& a, const Finding& b) { return place(a) < place(b); });
}

// True if the options describe a model that could be trained; else only the machine is checked.
bool names_a_model(const Resolved& resolved) {
  const Config& config = resolved.config;
  return config.model.num_all_layers() > 0 || config.checkpoint.load_hf || config.checkpoint.load;
}

// The whole configuration, checked for the launched ranks, or without a launcher for as many as it needs.
std::unique_ptr<Resolved> resolve_whole(const CommandContext& context, const Config& read, const Launch& launch,
                                        const std::function<void(OptionVisitor&)>& extra) {
  ConfigInputs inputs = context.config_inputs();
  if (launch.launcher != Launcher::kNone) return resolve_config(all_kinds(), inputs, launch.world_size, extra);
  const ParallelOptions& sizes = read.parallel;
  const int64_t dense = sizes.tensor_model_parallel_size * sizes.context_parallel_size;
  const int64_t experts =
      sizes.expert_model_parallel_size * sizes.expert_tensor_parallel_size.value_or(sizes.tensor_model_parallel_size);
  const int64_t smallest = std::lcm(dense, experts) * sizes.pipeline_model_parallel_size;
  // A dry run resolves for ranks that are not there.
  inputs.arguments.insert(inputs.arguments.end(), {"--dry_run", "true"});
  return resolve_config(all_kinds(), inputs, std::max(smallest, read.train.dry_run_world_size), extra);
}

struct DoctorReport {
  Findings findings;
  std::vector<Bandwidth> bandwidth;
  SpeedReport speed;  // of this rank
  std::vector<DoctorNode> nodes;
  int world_size = 1;
};

OrderedJson report_json(const DoctorReport& report) {
  OrderedJson object = findings_json(report.findings);
  object["world_size"] = report.world_size;
  object["bandwidth"] = OrderedJson::array();
  for (const Bandwidth& row : report.bandwidth) {
    object["bandwidth"].push_back({{"collective", name_of(row.kind)},
                                   {"bytes", row.bytes},
                                   {"seconds", row.seconds},
                                   {"algorithm_bytes_per_s", row.algorithm_bytes_per_s},
                                   {"bus_bytes_per_s", row.bus_bytes_per_s}});
  }
  object["speeds"] = OrderedJson::array();
  for (const SpeedRow& row : report.speed.rows) {
    OrderedJson speed = {
        {"benchmark", row.what}, {"unit", row.unit}, {"measured", row.measured}, {"expected", nullptr}};
    if (row.expected) speed["expected"] = *row.expected;
    object["speeds"].push_back(std::move(speed));
  }
  return object;
}

std::string report_text(const DoctorReport& report) {
  std::string text;
  if (!report.speed.rows.empty()) text += speeds_text(report.speed.rows, report.speed.device) + "\n";
  if (!report.bandwidth.empty()) text += bandwidth_text(report.bandwidth, report.world_size) + "\n";
  return text + findings_text(report.findings);
}

// Lists the nodes, or only this machine unless all ranks met and nothing broke.
void write_report(DoctorReport report, const std::string& folder) {
  if (report.nodes.empty()) {
    DoctorNode own{.host = host_name(), .failures = {}};
    for (const Finding& one : report.findings) {
      if (one.level == FindingLevel::kError) {
        own.failures.push_back(fmt::format("{}, {}: {}", one.topic, one.check, one.found));
      }
    }
    report.nodes.push_back(std::move(own));
  }
  write_node_report(folder, report.nodes, report_text(report));
}

void print_doctor_report(const DoctorReport& report, bool as_json) {
  if (as_json) {
    print_out("{}", dump_json_pretty(report_json(report)));
    return;
  }
  print_out("{}", report_text(report));
}

// A rank with a malformed launch still checks its machine.
Launch read_launch(CommandContext& context, Findings& findings) {
  try {
    const Launch launch = join_launch(context);
    findings.push_back({"environment", "launch", FindingLevel::kOk,
                        launch.launcher == Launcher::kNone
                            ? "one process, without a launcher"
                            : fmt::format("rank {} of {}, {} on this machine, by the variables of {}", launch.rank,
                                          launch.world_size, launch.local_world_size, name_of(launch.launcher)),
                        ""});
    return launch;
  } catch (const UserError& error) {
    findings.push_back({"environment", "launch", FindingLevel::kError, error.message(), error.remedy()});
    return {};
  }
}

// The ranks wait for one another forever: reports earlier findings and ends the process from the watchdog's thread.
[[noreturn]] void leave_hanging(CommandContext& context, DoctorReport report, const std::string& message,
                                const DoctorOptions& own, bool speaks) {
  report.findings.push_back({"collectives", "world", FindingLevel::kError, message.substr(0, message.find('\n')),
                             "what each rank waits for stands on standard error"});
  sort_by_topic(report.findings);
  if (speaks) print_doctor_report(report, own.json);
  std::fflush(stdout);
  context.log.error("{}", message);
  try {
    if (speaks && own.report_dir) write_report(std::move(report), *own.report_dir);
  } catch (const std::exception& error) {
    context.log.error("{}", error.what());
  }
  ::_exit(kExitFailure);
}

// Adds the measured collectives to --bench.
void add_all_reduce(const Launch& launch, DoctorReport& report) {
  if (report.speed.rows.empty()) return;
  const auto row = all_reduce_row(report.bandwidth, launch.world_size, launch.local_world_size, report.speed.expected);
  if (!row) return;
  append(report.findings, check_speeds(std::span(&*row, 1)));
  report.speed.rows.push_back(*row);
}

Finding no_collectives(bool is_broken) {
  const std::string found =
      is_broken ? "not tried: the launch's variables are wrong (see environment)" : "one process has nobody to talk to";
  return {"collectives", "collectives", FindingLevel::kNote, found,
          is_broken ? "" : "start doctor as the run will be: torchrun --no-python --nproc-per-node N megalith doctor"};
}

}  // namespace

void DoctorOptions::visit(OptionVisitor& v) {
  v.group("Doctor");
  v.field("json", json, "Print one JSON object instead of a list.");
  v.field("collectives", collectives,
          "Check the collectives. Default: only when several ranks were launched. A single rank talks to itself "
          "through the back end.");
  v.field(
      "bench", bench,
      "Measure matrix products, memory bandwidth, copies and, with several ranks, collectives, and print them beside "
      "what this kind of GPU should reach. Takes some seconds and 1 GiB of the device.")
      .alias("perf_test")
      .alias("tier2_perf");
  v.field("hub", hub, "Ask the Hugging Face hub whether it answers, and whether it takes the token.");
  v.field("largest_message_mib", largest_message_mib,
          "Largest message of the bandwidth table; 0 prints no table. With --bench on GPUs the default is 1024.")
      .unit("MiB")
      .within(0, 65536);
  v.field("disk_probe_mib", disk_probe_mib, "How much to write to each folder, and remove again, to measure its speed.")
      .unit("MiB")
      .within(1, 65536);
  v.field("node_groups", node_groups,
          "With several machines: numbers of machines, or 'all', between groups of which all-reduces, all-to-alls and "
          "a ring are measured with the largest message. A group of less than half the fastest one's speed is an "
          "error.")
      .alias("inter_group_sizes");
  v.field("report_dir", report_dir, "Folder for report.md, passing_nodes.txt and failing_nodes.txt.")
      .alias("dump_path");
}

std::vector<UserError> DoctorOptions::check() const {
  std::vector<UserError> errors;
  for (const std::string& size : node_groups) {
    if (size == "all" || parse_integer(size).value_or(0) > 1) continue;
    errors.emplace_back(fmt::format("node_groups has '{}'", size), "write numbers of machines above 1, or all");
  }
  if (!node_groups.empty() && largest_message_mib == 0) {
    errors.emplace_back("node_groups is given, and largest_message_mib is 0", "give a message above 0");
  }
  return errors;
}

int run_doctor(CommandContext& context) {
  using Check = int (*)(CommandContext&);
  for (const auto& [flag, check] : {std::pair<const char*, Check>{"--parallel", run_doctor_parallel},
                                    std::pair<const char*, Check>{"--types", run_doctor_types}}) {
    const auto found = std::find(context.arguments.begin(), context.arguments.end(), flag);
    if (found == context.arguments.end()) continue;
    context.arguments.erase(found);
    context.command = std::string("doctor ") + flag;
    return check(context);
  }
  DoctorOptions own;
  const auto extra = [&](OptionVisitor& v) { own.visit(v); };
  auto resolved = std::make_unique<Resolved>(all_kinds(), extra);
  // Without a model only the machine is checked: then only unreadable options are errors.
  const Resolution resolution = resolve(*resolved->options, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context, kDoctorUsage, *resolved->options);
  }
  throw_if_any(own.check());
  DoctorReport report;
  const Launch launch = read_launch(context, report.findings);
  const bool has_launch_error = count_level(report.findings, FindingLevel::kError) > 0;
  const bool has_model = names_a_model(*resolved);
  if (has_model) {
    own = {};  // parsed again
    resolved = resolve_whole(context, resolved->config, launch, extra);
    for (const std::string& note : resolved->notes) context.log.note("{}", note);
  } else {
    for (const std::string& note : resolution.notes) context.log.note("{}", note);
  }
  EnvironmentMap environment = context.environment;
  for (const auto& [name, value] : resolution.exports) {
    environment[name] = value;
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  const RuntimeOptions& runtime = resolved->config.runtime;
  const bool uses_gpu = runtime.device.device == DeviceChoice::kGpu ||
                        (runtime.device.device == DeviceChoice::kAuto && accelerator_count() > 0);
  set_num_threads(runtime.threads, launch.local_world_size);
  const DoctorCase one{.resolved = *resolved,
                       .options = own,
                       .environment = std::move(environment),
                       .launch = launch,
                       .has_model = has_model,
                       .uses_gpu = uses_gpu};
  append(report.findings, check_environment(one));
  if (own.bench) {
    report.speed = check_device_speed(one);
    append(report.findings, report.speed.findings);
    if (uses_gpu && !resolved->options->of(own.largest_message_mib).is_set())
      own.largest_message_mib = kBenchMessage_mib;
  }
  report.world_size = launch.world_size;
  const bool speaks = launch.rank == 0;
  if (!has_launch_error && own.collectives.value_or(launch.world_size > 1)) {
    WorldReport world = check_world(one, report.findings, [&](const std::string& message) {
      leave_hanging(context, report, message, own, speaks);
    });
    if (world.is_complete) {
      // Replaces warnings and errors by the shared ones, which name their ranks.
      std::erase_if(report.findings, [](const Finding& finding) { return finding.level >= FindingLevel::kWarning; });
      append(report.findings, std::move(world.shared));
      report.nodes = std::move(world.nodes);
    } else if (!speaks) {
      for (const Finding& finding : world.findings) {
        context.log.error("{}{}{}", finding.found, finding.remedy.empty() ? "" : "\n  ", finding.remedy);
      }
    }
    append(report.findings, std::move(world.findings));
    report.bandwidth = std::move(world.bandwidth);
    add_all_reduce(launch, report);
  } else {
    report.findings.push_back(no_collectives(has_launch_error));
  }
  sort_by_topic(report.findings);
  if (speaks) print_doctor_report(report, own.json);
  if (speaks && own.report_dir) write_report(report, *own.report_dir);
  return count_level(report.findings, FindingLevel::kError) > 0 ? kExitFailure : kExitSuccess;
}

std::vector<CommandOptions> doctor_options() {
  return {options_of<DoctorOptions, Config>("doctor"), options_of<Config>("doctor --parallel"),
          options_of<Config>("doctor --types")};
}

}  // namespace megalith
