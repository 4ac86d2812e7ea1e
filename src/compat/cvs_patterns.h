// Every pattern by which a training log, the kernel's log and network counters are read, so that logs of Megatron-LM,
// of Primus and ours are judged alike. Source: ROCm/cvs, cvs/lib/megatron_training_lib.py and its newer suites;
// Megatron-LM and Primus for what their lines have beside it.
#pragma once

#include <array>
#include <string_view>

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

// Phrases that fail a run, with regard to case.
inline constexpr std::array<std::string_view, 9> kFailures = {
    "NCCL ERROR",          "NCCL timeout",        "ncclRemoteError: A call failed possibly due to a network error",
    "NCCL error:",         "HW Exception by GPU", "GPU Hang",
    "Uncorrectable error", "GPU Reset",           "torch.distributed.elastic.multiprocessing.errors"};
// Not CVS's: why a run may have ended early. torch says it of an NVIDIA GPU, of an AMD GPU and of the processor.
inline constexpr std::array<std::string_view, 5> kOutOfMemory = {
    "CUDA out of memory", "HIP out of memory", "torch.OutOfMemoryError", "can't allocate memory", "out of memory"};

// Parts of the names of network counters that must not grow during a run.
inline constexpr std::array<std::string_view, 10> kErrorCounters = {
    "err", "retransmit", "drop", "discard", "naks", "invalid", "oflow", "out_of_buffer", "reset", "fail"};

// Phrases of the kernel's log, by kind; lines with an exempt word (an audit of file access) are passed over.
struct KernelPhrase {
  std::string_view kind, phrase;
};
inline constexpr std::array<std::string_view, 2> kKernelExempt = {"ALLOWED", "DENIED"};
// Known to cost speed only.
inline constexpr std::string_view kKernelWarning = "warn";
inline constexpr std::array<KernelPhrase, 36> kKernel = {{
    {"gpu_reset", "GPU reset begin"},
    {"gpu_reset", "GPU hang"},
    {"gpu_reset", "cp might be in an unrecoverable state"},
    {"gpu_reset", "fence wait loop timeout expired"},
    {"crash", "crashed"},
    {"crash", "Traceback"},
    {"crash", "cut here"},
    {"crash", "Bug:"},
    {"crash", "Call Trace"},
    {"crash", "RIP:"},
    {"crash", "end trace"},
    {"crash", "amdgpu: Fatal error"},
    {"crash", "segfault"},
    {"crash", "show_stack"},
    {"crash", "dump_stack"},
    {"crash", "fault "},
    {"fault", "no-retry page fault"},
    {"fault", "Illegal register access"},
    {"fault", "PROTECTION_FAULT_STATUS"},
    {"driver", "Queue preemption failed for queue"},
    {"driver", "Failed to evict process queues"},
    {"driver", "No more SDMA queue to allocate"},
    {"driver", "amdgpu: process pid"},
    {"hardware", "hardware error"},
    {"hardware", "hardware fail"},
    {"hardware", "ras error"},
    {"hardware", "uncorrectable"},
    {"hardware", "correctable err"},
    {"network", "NIC Link is Down"},
    {"network", "link is down"},
    {"network", "ib_uverb"},
    {"network", "CQE"},
    {"network", "queue catastrophic"},
    {"network", "CQ error"},
    {kKernelWarning, "Runlist is getting oversubscribed"},
    {kKernelWarning, "Expect reduced ROCm performance"},
}};

}  // namespace megalith::cvs_patterns
