// The start-up report: what a run is about to do, in the few numbers a person checks first. At most kReportLines lines,
// each with its topic in front:
//
//   model      llama, 10,716,672 parameters: embedding 98.7 k, 6 layers 10.6 M, head 384 (tied)
//   precision  bf16 weights and products; gradients, moments and master weights in fp32
//   …
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/data_sets.h"
#include "train/config.h"
#include "train/setup.h"

namespace megalith {

inline constexpr size_t kReportLines = 25, kReportColumns = 110;

// Bytes by owner on this rank.
struct MemoryByOwner {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;    // measured without data, see activation_report.h
  int64_t weight_copies = 0;  // what a recipe makes of the weights, during a step
  int64_t on_host = 0;        // of parameters, gradients and optimizer, beside a device; with buffers for copies
};

struct ModelNumbers {
  int64_t parameters = 0;             // of the whole model without prediction modules, padding not counted
  int64_t embedding_parameters = 0;   // of these
  int64_t layer_parameters = 0;       // of these; the rest is the head's
  int64_t prediction_parameters = 0;  // beside these
  int64_t active_parameters = 0;      // those of `parameters` that one token meets
  int64_t adapter_parameters = 0;     // beside these, and then the only ones that are trained; 0: no adapters
  double flops_per_step = 0;          // of all ranks, attention as if every key were seen
  double flops_per_step_primus = 0;   // by Primus's formula: the same without prediction modules and routers
  double flops_per_step_seen = 0;     // attention only to the keys that are seen: half of them, fewer with windows
};

// built may be on the meta device.
ModelNumbers count_model(const BuiltModel& built, const Resolved& resolved);

// What only a run that has begun knows.
struct ReportFacts {
  std::string attention;           // who computes it; empty on a CPU
  std::string graphs;              // what is captured; empty when nothing is
  const DataSets* data = nullptr;  // the report says nothing of the data without it
  // Products of the device a second: its peak, or what a CPU was measured to do. 0: not known.
  double flops_per_s = 0;
  bool is_measured = false;
};

// Several lines, without a line break at the end. memory is left out when it is null (a dry run allocates nothing).
// device_text  its first line is shown; --verbose shows all of it
std::string startup_report(const Resolved& resolved, const ModelNumbers& numbers, const MemoryByOwner* memory,
                           const std::string& device_text, const ReportFacts& facts = {});

// Every option that differs from its default, and who set it: a line each, with a heading.
std::string differing_options(const OptionSet& options);

// "bf16"
std::string dtype_text(at::ScalarType dtype);

}  // namespace megalith
