// All patterns for training logs, the kernel's log and network counters, so that logs of Megatron-LM, Primus and ours
// are judged alike. Source: ROCm/cvs, cvs/lib/megatron_training_lib.py and its newer suites; Megatron-LM and Primus for
// the rest of their lines.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::cvs_patterns {

// Fields of an iteration's line: case-insensitive ECMAScript regular expressions; the first group is the value.
// "instant/mean" gives the instant.
#define MEGALITH_CVS_NUMBER R"((-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|nan|inf)))"
inline constexpr const char* kIteration = R"(iteration\s+(\d+)\s*/\s*(\d+))";
inline constexpr const char* kElapsed = R"(elapsed time per iteration\s*\([^)]*\)\s*:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kThroughput = R"((?:throughput|compute) per GPU\s*\([^)]*\)\s*:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kTokens =
    R"((?:tokens per GPU\s*\([^)]*\)|tokens/s/GPU inst/harmonic mean|tokens/GPU/s)\s*:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kMemory = R"(mem usages:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kMemoryPercent = R"((?:hip|rocm) mem usage/free/total/usage_ratio:[^|%]*/([0-9.]+)%)";
inline constexpr const char* kLoss = R"(\blm loss:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kGradNorm = R"(grad norm:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kBatch = R"(global batch size:\s*(\d+))";
inline constexpr const char* kSkipped = R"(number of skipped iterations:\s*(\d+))";
inline constexpr const char* kNan = R"(number of nan iterations:\s*(\d+))";

// torchtitan's lines, without their colors: "step:  1  loss:  8.1309  grad_norm:  1.25  memory:  1.23GiB(2.50%)  tps:
// 1,234  tflops: 12.30  mfu: 1.20%". Validation has a line of its own.
inline constexpr const char* kTitanStep = R"(\bstep:\s*(\d+)\s)";
inline constexpr const char* kTitanLoss = R"(\bloss:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kTitanGradNorm = R"(grad_norm:\s*)" MEGALITH_CVS_NUMBER;
inline constexpr const char* kTitanMemoryPercent = R"(memory:[^(]*\(([0-9.]+)%\))";
inline constexpr const char* kTitanTokens = R"(\btps:\s*([0-9,.]+))";
inline constexpr const char* kTitanTflops = R"(tflops:\s*([0-9,.]+))";
#undef MEGALITH_CVS_NUMBER

// Lines before the first iteration.
inline constexpr const char* kWorldSize = R"(using world size:\s*(\d+))";
inline constexpr const char* kArgument = R"(^\s*(\w+) \.{2,} (\S.*)$)";  // Megatron-LM's list of its arguments

// CVS's legacy tests look at this many last lines, where every match must reach its bound.
inline constexpr int kTailLines = 15;
struct TailPattern {
  std::string_view key;
  const char* pattern;
};
inline constexpr std::array<TailPattern, 4> kTail = {{
    {"throughput_per_gpu", R"(throughput per GPU(?:\s*\([^)]*\))?\s*:\s+([0-9.]+))"},
    {"tokens_per_gpu", R"(tokens/GPU/s:\s+([0-9]+))"},
    {"mem_usage", R"(mem usages:\s+([0-9.]+))"},
    {"elapsed_time_per_iteration", R"(elapsed time per iteration \(ms\):\s+([0-9.]+))"},
}};
// Sweeps look for a script's summary there, else for the iterations' values in the whole log.
inline constexpr std::array<TailPattern, 4> kSummary = {{
    {"throughput_per_gpu", R"(throughput per GPU:\s+([0-9.]+))"},
    {"tokens_per_gpu", R"(tokens/GPU/s:\s+([0-9.]+))"},
    {"mem_usage", R"(mem usages:\s+([0-9.]+))"},
    {"elapsed_time_per_iteration", R"(elapsed time per iteration:\s+([0-9.]+))"},
}};
inline constexpr std::array<TailPattern, 4> kWhole = {{
    {"throughput_per_gpu", R"(throughput per GPU\s*\([^)]*\)\s*:\s*([0-9.eE+\-]+))"},
    {"tokens_per_gpu", R"(tokens/GPU/s\s*:\s*([0-9.eE+\-]+))"},
    {"mem_usage", R"(mem usages:\s*([0-9.eE+\-]+))"},
    {"elapsed_time_per_iteration", R"(elapsed time per iteration\s*\([^)]*\)\s*:\s*([0-9.eE+\-]+))"},
}};
inline constexpr const char* kTailComplete = R"(throughput per GPU(?:\s*\([^)]*\))?\s*:|tokens/GPU/s\s+[0-9]+)";

// A row of config/dialects/cvs_phrases.table; kind is failure, out_of_memory, counter, kernel_exempt, or a kernel event
// such as kernel_crash. kernel_warn only costs speed.
struct CvsPhraseRow {
  std::string kind, phrase;
};
// Rows whose kind begins with this.
std::vector<CvsPhraseRow> phrases_of(std::string_view kind);
// The first one found in the text; null if none.
const CvsPhraseRow* first_phrase(const std::vector<CvsPhraseRow>& phrases, std::string_view text);

}  // namespace megalith::cvs_patterns
