// megalith bench: finds the topic.
#include "bench/bench.h"

#include "core/strings.h"

namespace megalith {
namespace {

constexpr Command kBenchTopics[] = {
    {"ops", "every operator, forward and backward, fused and reference", bench_ops},
    {"gemm", "forward, dgrad and wgrad of a model's linear layers, or of given shapes", bench_gemm},
    {"attention", "attention beside PyTorch's scaled_dot_product_attention", bench_attention},
    {"moe", "a layer's experts beside a dense MLP of the same active work", bench_moe},
    {"overlap", "how much of a network's time each form of overlap hides, on ranks as threads", bench_overlap},
    {"rccl", "collectives of the launched ranks, by size", bench_rccl},
    {"strided_allgather", "all-gathers of every stride-th rank, such as one GPU of each machine", bench_strided},
    {"train", "training steps on mock data: tokens/s, memory, page faults, time to start", bench_train},
    {"calibrate", "this machine's rates, as a file for 'megalith plan --cluster'", bench_calibrate},
};

}  // namespace

int run_bench(CommandContext& context) {
  // Primus writes strided-allgather.
  if (!context.arguments.empty() && !context.arguments[0].starts_with("-")) {
    context.arguments[0] = fold_name(context.arguments[0]);
  }
  return run_topic(context, "bench", kBenchTopics);
}

std::vector<CommandOptions> bench_options() {
  return {bench_ops_options(),  bench_gemm_options(),    bench_attention_options(),
          bench_moe_options(),  bench_overlap_options(), bench_rccl_options(),
          bench_strided_options(), bench_train_options(), bench_calibrate_options()};
}

}  // namespace megalith
