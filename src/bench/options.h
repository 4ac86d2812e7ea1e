// What the topics of `megalith bench` are given: their own options, and the configuration with the model's sizes.
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

// Options that every topic has. A topic with more of them derives from it and extends visit() and check().
struct BenchOptions {
  int64_t iterations = 20;
  int64_t warmup = 3;
  std::optional<std::string> dtype;
  bool json = false;
  std::optional<std::string> output_file;

  void visit(OptionVisitor& v);
  std::vector<UserError> check() const;
};

// "2048x768x768" against a form "MxNxK": one positive number for each letter. What is wrong goes into `errors`.
std::vector<std::vector<int64_t>> parse_shapes(const std::vector<std::string>& texts, const std::string& form,
                                               std::vector<UserError>& errors);

// Declares options on a visitor.
using DeclareOptions = std::function<void(OptionVisitor&)>;

// Values that a topic insists on, whatever the configuration says.
struct BenchInsistence {
  // The values as arguments, put behind all others; given the topic's options.
  std::function<std::vector<std::string>(const BenchOptions&)> arguments;
  // Options that are refused on the command line, because the topic overrides them, and what to do instead. In a
  // configuration file, which is made for training, they are overridden without a message.
  std::vector<std::pair<std::string, std::string>> refused;
};

// What one topic adds to the configuration.
struct BenchRequest {
  // The same declarations twice. The first, on variables that are thrown away, tells which options somebody has set, so
  // that the benchmark's defaults replace only the others.
  DeclareOptions declare_probe, declare;
  std::function<std::vector<UserError>()> check;  // of the topic's options, once they have their values
  const BenchOptions* probe = nullptr;            // the common part of the variables that are thrown away
  const BenchOptions* output = nullptr;           // that of the others
  BenchInsistence insists;
  int64_t world_size = 1;
};

// The configuration of a benchmark. Defaults: the preset llama_125M, micro-batches of 4 samples of 512 tokens, bf16
// where the device multiplies it in hardware and fp32 elsewhere. Throws UserErrors with all that is wrong.
std::unique_ptr<Resolved> resolve_bench(const CommandContext& context, const BenchRequest& request);

// The same for a topic's options: a struct that derives from BenchOptions.
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

// Prints what the arguments ask of `--help`.
int print_bench_help(const CommandContext& context, const Resolved& resolved, std::string_view usage);

}  // namespace megalith
