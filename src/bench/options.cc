#include "bench/options.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/acting_options.h"
#include "cli/help.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "device/device.h"
#include "kinds/kinds.h"

namespace megalith {
namespace {

constexpr int64_t kBenchBatch = 4;
constexpr int64_t kBenchSequence = 512;
constexpr int64_t kLongestSide = int64_t{1} << 31;

bool prefers_bf16(DeviceChoice choice) {
  if (choice != DeviceChoice::kCpu && accelerator_count() > 0) return true;
  return has_native_bf16(c10::Device(c10::kCPU));
}

// A benchmark's defaults, as arguments before all others, which override them.
std::vector<std::string> default_arguments(const Resolved& probed, const BenchOptions& options) {
  const auto is_set = [&](const char* name) { return probed.options->find(name)->is_set(); };
  const Config& config = probed.config;
  std::vector<std::string> arguments;
  // A folder's architecture is read later, and sets the sequence length itself.
  const bool has_folder = config.checkpoint.load_hf || config.checkpoint.load;
  if (!is_set("micro_batch_size") && !is_set("global_batch_size")) {
    arguments.push_back(fmt::format("--micro_batch_size={}", kBenchBatch));
  }
  if (!is_set("seq_length") && !has_folder && config.model.has_vocabulary()) {
    const int64_t longest = config.model.max_position_embeddings;
    arguments.push_back(
        fmt::format("--seq_length={}", longest > 0 ? std::min(longest, kBenchSequence) : kBenchSequence));
  }
  // Speed does not depend on the documents.
  if (!config.data.mock_data && !config.data.has_paths()) arguments.emplace_back("--mock_data");
  if (options.dtype) {
    for (const char* name : {"bf16", "fp16", "fp32"}) {
      arguments.push_back(fmt::format("--{}={}", name, *options.dtype == name));
    }
  } else if (!config.train.bf16 && !config.train.fp16 && !config.train.fp32) {
    arguments.emplace_back(prefers_bf16(config.runtime.device.device) ? "--bf16=true" : "--fp32=true");
  }
  return arguments;
}

}  // namespace

void BenchOptions::visit(OptionVisitor& v) {
  v.group("Benchmark");
  v.field("iterations", iterations, "Measured rounds (train: steps).").at_least(1);
  v.field("warmup", warmup, "Rounds (train: steps) before them that are run but not counted.").at_least(1);
  v.field("dtype", dtype,
          "Precision: bf16, fp16 or fp32, as the options of these names. Default: what the configuration says, else "
          "bf16 where the device multiplies it in hardware, else fp32.")
      .words({"bf16", "fp16", "fp32"});
  v.field("json", json, "Print one JSON object a row instead of the table.");
  v.field("output_file", output_file, "File for the rows as JSON, one object a line.");
}

std::vector<UserError> BenchOptions::check() const {
  std::vector<UserError> errors;
  if (!output_file) return errors;
  const std::filesystem::path folder = std::filesystem::path(*output_file).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
    errors.emplace_back(fmt::format("output_file {}: there is no folder {}", *output_file, folder.string()),
                        "make the folder, or name another file");
  }
  return errors;
}

std::vector<std::vector<int64_t>> parse_shapes(const std::vector<std::string>& texts, const std::string& form,
                                               std::vector<UserError>& errors) {
  const auto num_sides = static_cast<size_t>(std::count(form.begin(), form.end(), 'x')) + 1;
  std::vector<std::vector<int64_t>> shapes;
  for (const std::string& text : texts) {
    std::vector<int64_t> sides;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('x', begin), text.size());
      const auto side = parse_integer(text.substr(begin, end - begin));
      sides.push_back(side && *side >= 1 && *side <= kLongestSide ? *side : 0);
      begin = end + 1;
    }
    if (sides.size() == num_sides && std::find(sides.begin(), sides.end(), 0) == sides.end()) {
      shapes.push_back(std::move(sides));
      continue;
    }
    errors.emplace_back(fmt::format("shapes has '{}', but takes {} positive numbers {}", text, num_sides, form),
                        "separate the shapes by commas");
  }
  return shapes;
}

std::unique_ptr<Resolved> resolve_bench(const CommandContext& context, const BenchRequest& request) {
  ConfigInputs inputs = context.config_inputs();
  Resolved probed(all_kinds(), request.declare_probe);
  Resolution found = try_resolve(*probed.options, inputs);
  if (!found.config_file && !probed.config.checkpoint.load_hf && !probed.config.checkpoint.load) {
    inputs.config_file = context.config_root / "models" / "llama_125M.yaml";
    found = try_resolve(*probed.options, inputs);
  }
  std::vector<UserError> errors;
  if (!found.wants_help) {
    std::vector<std::string> defaults = default_arguments(probed, *request.probe);
    // Benchmarks of operators have no data.
    if (!acts_in(context.command, probed.options->of(probed.config.data.mock_data)))
      std::erase(defaults, "--mock_data");
    inputs.arguments.insert(inputs.arguments.begin(), defaults.begin(), defaults.end());
    for (const auto& [name, remedy] : request.insists.refused) {
      if (probed.options->find(name)->source().layer != OptionLayer::kCommandLine) continue;
      errors.emplace_back(fmt::format("--{} is not for a benchmark", name), remedy);
    }
    if (request.insists.arguments) {
      const std::vector<std::string> insisted = request.insists.arguments(*request.probe);
      inputs.arguments.insert(inputs.arguments.end(), insisted.begin(), insisted.end());
    }
  }
  std::unique_ptr<Resolved> resolved;
  try {
    resolved = resolve_config(all_kinds(), inputs, request.world_size, request.declare);
  } catch (const UserErrors& several) {
    errors.insert(errors.end(), several.errors().begin(), several.errors().end());
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  if (resolved && resolved->wants_help) return resolved;
  if (resolved && request.output->output_file) {
    auto error = check_replaceable("output_file", *request.output->output_file, kBenchMark,
                                   resolved->config.checkpoint.overwrite);
    if (error) errors.push_back(std::move(*error));
  }
  const std::vector<UserError> own = request.check();
  errors.insert(errors.end(), own.begin(), own.end());
  throw_if_any(errors);
  return resolved;
}

int print_bench_help(const CommandContext& context, const Resolved& resolved, std::string_view usage) {
  return print_help(context, fmt::format("usage: {}", usage), *resolved.options);
}

}  // namespace megalith
