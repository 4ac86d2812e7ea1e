// The inputs of `megalith bench` topics: their options, and the configuration with the model's sizes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "config/option.h"
#include "core/error.h"
#include "train/config.h"

namespace megalith {

// Options of every topic. A topic with more derives from it and extends visit() and check().
struct BenchOptions {
  int64_t iterations = 20;
  int64_t warmup = 3;
  std::optional<std::string> dtype;
  bool json = false;
  std::optional<std::string> output_file;

  void visit(OptionVisitor& v);
  std::vector<UserError> check() const;
};

// "2048x768x768" against a form "MxNxK": one positive number per letter. Problems go into `errors`.
std::vector<std::vector<int64_t>> parse_shapes(const std::vector<std::string>& texts, const std::string& form,
                                               std::vector<UserError>& errors);

using DeclareOptions = std::function<void(OptionVisitor&)>;

// Values that a topic requires, whatever the configuration.
struct BenchInsistence {
  // The values, as arguments after all others; given the topic's options.
  std::function<std::vector<std::string>(const BenchOptions&)> arguments;
  // Overridden options that the command line may not set, and the remedies. A configuration file, which is made for
  // training, may: they are overridden without a message.
  std::vector<std::pair<std::string, std::string>> refused;
};

// A topic's additions to the configuration.
struct BenchRequest {
  // The same declarations twice. The first, on discarded variables, tells which options were set, so that the
  // benchmark's defaults replace only the others.
  DeclareOptions declare_probe, declare;
  std::function<std::vector<UserError>()> check;  // of the topic's options, once set
  const BenchOptions* probe = nullptr;            // common part of the discarded variables
  const BenchOptions* output = nullptr;           // common part of the others
  BenchInsistence insists;
  int64_t world_size = 1;
};

// A benchmark's configuration. Defaults: preset llama_125M, micro-batches of 4 samples of 512 tokens, bf16 where the
// device multiplies it in hardware and fp32 elsewhere. UserErrors with all problems.
std::unique_ptr<Resolved> resolve_bench(const CommandContext& context, const BenchRequest& request);

// The same for a struct of options that derives from BenchOptions.
template <typename Options>
std::unique_ptr<Resolved> resolve_bench(const CommandContext& context, Options& options, int64_t world_size = 1,
                                        BenchInsistence insists = {}) {
  Options probe = options;
  return resolve_bench(context, {.declare_probe = [&](OptionVisitor& v) { probe.visit(v); },
                                 .declare = [&](OptionVisitor& v) { options.visit(v); },
                                 .check = [&] { return options.check(); },
                                 .probe = &probe,
                                 .output = &options,
                                 .insists = std::move(insists),
                                 .world_size = world_size});
}

int print_bench_help(const CommandContext& context, const Resolved& resolved, std::string_view usage);

}  // namespace megalith
