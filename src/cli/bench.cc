// megalith bench: finds the topic; see bench.h.
#include "cli/bench.h"

#include <cstdio>

#include "core/error.h"

namespace megalith {
namespace {

struct BenchTopic {
  std::string_view name, summary;
  int (*run)(CommandContext&);
};

constexpr BenchTopic kBenchTopics[] = {
    {"ops", "every operator, forward and backward, fused and reference", bench_ops},
    {"gemm", "forward, dgrad and wgrad of a model's linear layers, or of given shapes", bench_gemm},
    {"attention", "attention beside PyTorch's scaled_dot_product_attention", bench_attention},
    {"overlap", "how much of a network's time each form of overlap hides, on ranks as threads", bench_overlap},
    {"train", "training steps on mock data: tokens/s, memory, page faults, time to start", bench_train},
};

}  // namespace

int run_bench(CommandContext& context) {
  if (!context.arguments.empty()) {
    for (const BenchTopic& topic : kBenchTopics) {
      if (topic.name != context.arguments[0]) continue;
      context.arguments.erase(context.arguments.begin());
      return topic.run(context);
    }
  }
  std::string text = "usage: megalith bench <topic> [options]\n\n";
  for (const BenchTopic& topic : kBenchTopics) text += fmt::format("  {:<10} {}\n", topic.name, topic.summary);
  if (context.wants_help()) {
    fmt::print("{}", text);
    return kExitSuccess;
  }
  throw UserError(
      context.arguments.empty() ? "no topic given" : fmt::format("unknown topic '{}'", context.arguments[0]), text);
}

}  // namespace megalith
