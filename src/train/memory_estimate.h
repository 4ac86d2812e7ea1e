// A rank's memory by owner before allocation, for dry runs, refusals, out-of-memory messages and the doctor.
//
// Parameters, gradients and optimizer come from the run's own objects on the meta device, exact to the byte;
// activations are measured there too (parallel/activation_memory.h). Not included: program and libraries, GPU contexts,
// communication buffers, kernel workspaces, fragmentation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/cluster.h"
#include "train/config.h"

namespace megalith {

struct MemoryRow {
  std::string owner;
  int64_t bytes = 0;
};

// Host memory of a device run (fsdp_cpu_offload, optimizer_cpu_offload), or of a CPU run.
struct HostMemory {
  int64_t parameters = 0, gradients = 0, masters = 0, optimizer = 0;

  int64_t total() const { return parameters + gradients + masters + optimizer; }
};

struct MemoryEstimate {
  int rank = 0;
  int64_t parameters = 0;
  int64_t weight_copies = 0;  // 8-bit, during a step
  int64_t masters = 0;        // fp32 masters or remainders
  int64_t optimizer = 0;      // the rest of its state
  int64_t gradients = 0;
  int64_t cache = 0;          // keys and values during generation
  int64_t activations = 0;    // peak, in training without the head's
  int64_t logits = 0;         // added by the head and its loss in training
  int64_t communication = 0;  // layers gathered by FSDP, gradients reduced in bf16
  int64_t data = 0;           // a step's batches and the next's, in host memory
  HostMemory host;            // in addition to the device's above

  int64_t state() const { return parameters + weight_copies + masters + optimizer + gradients + communication; }
  int64_t on_device() const { return state() + cache + activations + logits; }
  int64_t total() const { return on_device() + data; }
  // For a CPU device: host memory merged into the device's.
  MemoryEstimate of_one_memory() const;
  std::vector<MemoryRow> rows() const;
  // "parameters 1.2 GiB, gradients 2.4 GiB, …"
  std::string text() const;
};

// rank  in the run's world
MemoryEstimate estimate_memory(const Resolved& resolved, int rank);

// A rank of each stage of one pipeline, whose ranks differ most; and the largest of them.
std::vector<MemoryEstimate> estimate_stages(const Resolved& resolved);
MemoryEstimate estimate_largest(const std::vector<MemoryEstimate>& stages);

// Needed at most: fragments beside a rank's tensors, and the chip's context_gib for contexts, communicators and
// workspaces. A search offers only layouts for which that much is there.
int64_t upper_memory_bound(int64_t tensor_bytes, const ChipRates& chip = {});
// A given run fits if its tensors take at most 95 % of a device's memory. Bytes left of that; negative: missing.
int64_t memory_left(int64_t tensor_bytes, int64_t memory_bytes);

// A table, one line per owner, with a final newline.
std::string memory_table(const MemoryEstimate& memory, int64_t world_size);

struct MemorySaving {
  std::string words;  // "--recompute_activations"
  int64_t bytes = 0;
  std::string cost;   // "about a third more computation"
};

// Estimates a command's memory. Training: estimate_memory; others: train/inference_memory.h.
using MemoryMeasure = std::function<MemoryEstimate(const Resolved& resolved, int rank)>;

// Tokens per second and GPU (planned_speed() in train/step_plan.h).
using SpeedOf = std::function<double(const Resolved& resolved)>;

// At most three that save at least a tenth of `missing_bytes`, cheapest in speed first.
// may_add_ranks  each rank has its own memory, as with a GPU each
// speed_of       if given, costs say how much more GPU time a token takes
std::vector<MemorySaving> cheapest_savings(const Resolved& resolved, const MemoryEstimate& estimate,
                                           int64_t missing_bytes, bool may_add_ranks,
                                           const MemoryMeasure& measure = estimate_memory,
                                           const SpeedOf& speed_of = {});

}  // namespace megalith
