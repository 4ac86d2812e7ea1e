// What a rank of a run will hold, by owner, before anything is allocated. One function serves the dry run, the refusal
// of what cannot fit, the message about memory that ran out, and the doctor.
//
// Parameters, gradients and optimizer are those of a run's own objects, built on the meta device, so they are right to
// the byte. Activations are measured there too (parallel/activation_memory.h). Left out is what nobody here allocates:
// the program and its libraries, a GPU's context, the buffers of NCCL, RCCL and Gloo, workspaces of kernels, and what
// an allocator loses to fragments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config.h"

namespace megalith {

struct MemoryRow {
  std::string owner;
  int64_t bytes = 0;
};

// What lies in host memory beside a device (fsdp_cpu_offload, optimizer_cpu_offload), on the CPU as elsewhere.
struct HostMemory {
  int64_t parameters = 0, gradients = 0, masters = 0, optimizer = 0;

  int64_t total() const { return parameters + gradients + masters + optimizer; }
};

struct MemoryEstimate {
  int rank = 0;
  int64_t parameters = 0;
  int64_t weight_copies = 0;  // in eight bits, during a step
  int64_t masters = 0;        // fp32 weights, or remainders, beside those of the model
  int64_t optimizer = 0;      // the rest of its state
  int64_t gradients = 0;
  int64_t cache = 0;          // keys and values of the positions of a text that is being written
  int64_t activations = 0;    // at most at once, in training without the head's
  int64_t logits = 0;         // what the head and its loss add to that in training
  int64_t communication = 0;  // layers that FSDP gathers, gradients that travel in bf16
  int64_t data = 0;           // the batches of a step and of the next, in host memory
  HostMemory host;            // beside all of these, which are the device's

  int64_t state() const { return parameters + weight_copies + masters + optimizer + gradients + communication; }
  int64_t total() const { return state() + cache + activations + logits + data; }
  // The same for a device that is the CPU: its memory is the host's, and nothing lies elsewhere.
  MemoryEstimate of_one_memory() const;
  // Owner after owner, those that hold nothing left out.
  std::vector<MemoryRow> rows() const;
  // "parameters 1.2 GiB, gradients 2.4 GiB, …"
  std::string text() const;
};

// rank  of the run's world
MemoryEstimate estimate_memory(const Resolved& resolved, int rank);

// That of the rank which holds most, among those of one pipeline, which differ most.
MemoryEstimate estimate_largest(const Resolved& resolved);

// The same as a table, a line an owner, with a line break at its end.
std::string memory_table(const MemoryEstimate& memory, int64_t world_size);

// An option that takes less memory, and how much less on this rank.
struct MemorySaving {
  std::string words;  // "--recompute_activations"
  int64_t bytes = 0;
};

// What a rank of a command holds. Training: estimate_memory; others: train/inference_memory.h.
using MemoryMeasure = std::function<MemoryEstimate(const Resolved& resolved, int rank)>;

// At most three that save a tenth of `missing_bytes` or more, in the order of what they cost in speed.
// may_add_ranks  more ranks bring more memory: they do where each has a GPU
std::vector<MemorySaving> cheapest_savings(const Resolved& resolved, const MemoryEstimate& estimate,
                                           int64_t missing_bytes, bool may_add_ranks,
                                           const MemoryMeasure& measure = estimate_memory);

}  // namespace megalith
