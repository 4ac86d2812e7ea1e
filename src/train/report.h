// The start-up report: the numbers to check first, in at most kReportLines lines:
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

// This rank's bytes.
struct MemoryByOwner {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;    // measured, see activation_report.h
  int64_t weight_copies = 0;  // a recipe's, during a step
  int64_t on_host = 0;        // of parameters, gradients and optimizer of a device run, including copy buffers
};

struct ModelNumbers {
  int64_t parameters = 0;             // of the whole model without prediction modules and padding
  int64_t embedding_parameters = 0;   // among these
  int64_t layer_parameters = 0;       // among these; the rest is the head's
  int64_t prediction_parameters = 0;  // in addition
  int64_t active_parameters = 0;      // those of `parameters` used by one token
  int64_t adapter_parameters = 0;     // in addition, trained; 0: no adapters
  int64_t saved_parameters = 0;       // trained with the adapters (lora.modules_to_save), among `parameters`
  double flops_per_step = 0;          // of all ranks, with full attention
  double flops_per_step_primus = 0;   // Primus's formula: without prediction modules and routers
  double flops_per_step_seen = 0;     // attention to visible keys only: half, fewer with windows
};

// built may be on the meta device.
ModelNumbers count_model(const BuiltModel& built, const Resolved& resolved);

// The share of a layer's pairs of queries and keys that is seen: a half if causal, less with a window.
double share_of_pairs_seen(const ModelConfig& config, int64_t layer, int64_t length);

struct ReportFacts {
  std::string attention;           // its library; empty on a CPU
  std::string graphs;              // what is captured; may be empty
  const DataSets* data = nullptr;  // null: the report omits the data
  // The device's peak, or a CPU's measurement. 0: unknown.
  double flops_per_s = 0;
  bool is_measured = false;
};

// Several lines without a final newline. memory may be null (dry run).
// device_text  its first line is shown, with --verbose all
std::string startup_report(const Resolved& resolved, const ModelNumbers& numbers, const MemoryByOwner* memory,
                           const std::string& device_text, const ReportFacts& facts = {});

// Options not at their defaults with their sources: a heading, one line each.
std::string differing_options(const OptionSet& options);

// "bf16"
std::string dtype_text(at::ScalarType dtype);

}  // namespace megalith
