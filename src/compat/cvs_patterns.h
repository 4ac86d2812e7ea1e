// Every pattern by which a training log, the kernel's log and network counters are read, so that logs of Megatron-LM,
// of Primus and ours are judged alike. Source: ROCm/cvs, cvs/lib/megatron_training_lib.py and its newer suites;
// Megatron-LM and Primus for what their lines have beside it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::cvs_patterns {

// Fields of an iteration's line. Regular expressions of ECMAScript, without regard to case; what counts is the first
// group. "instant/mean" gives the instant.
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
#undef MEGALITH_CVS_NUMBER

// Lines before the first iteration.
inline constexpr const char* kWorldSize = R"(using world size:\s*(\d+))";
inline constexpr const char* kArgument = R"(^\s*(\w+) \.{2,} (\S.*)$)";  // Megatron-LM's list of its arguments

// How many lines at the end CVS's legacy tests look at, and for what: every match must reach its bound.
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
inline constexpr const char* kTailComplete = R"(throughput per GPU(?:\s*\([^)]*\))?\s*:|tokens/GPU/s\s+[0-9]+)";

// A row of config/dialects/cvs_phrases.table; kind is failure, out_of_memory, counter, kernel_exempt, or what the
// kernel tells of, such as kernel_crash. kernel_warn is known to cost speed only.
struct CvsPhraseRow {
  std::string kind, phrase;
};
// The rows whose kind begins so.
std::vector<CvsPhraseRow> phrases_of(std::string_view kind);
// The first of them that the text has; null when it has none.
const CvsPhraseRow* first_phrase(const std::vector<CvsPhraseRow>& phrases, std::string_view text);

}  // namespace megalith::cvs_patterns
