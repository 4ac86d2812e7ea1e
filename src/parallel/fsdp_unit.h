// One FSDP unit's parameters and gradients: whole during use, runs otherwise.
//
// Parameters of one dtype with gradients summed over the same ranks (dense ones, experts, those that some pipeline
// stages share), trainable and frozen apart, are consecutive in flat buffers, padded to a multiple of these ranks; rank
// r owns the r-th run. Values are views of the buffer, whose storage is empty while sharded: shapes stay valid, and
// gathering copies nothing. Packed weights are bytes, dequantised when used. Collectives carry the unit's name.
//
// part_elements close a buffer. Backward fills a unit's buffers in turn, last first, so gradients are whole only from a
// part's first contribution to its reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "device/stream.h"
#include "nn/parameter.h"
#include "parallel/buckets.h"
#include "parallel/host_runs.h"

namespace megalith {

// This rank's bytes beyond its runs.
struct FsdpMemory {
  struct Count {
    int64_t now = 0, peak = 0;
    void add(int64_t bytes) {
      now += bytes;
      peak = std::max(peak, now);
    }
  };
  Count parameters, gradients;
};

// Reusable buffers for whole gradients.
class GradientPool {
 public:
  explicit GradientPool(FsdpMemory& memory) : memory_(memory) {}
  // At least this many elements, at most a quarter more, uninitialised.
  at::Tensor take(int64_t num_elements, const at::TensorOptions& options);
  // read  another stream reads it until then
  void give_back(at::Tensor buffer, std::optional<StreamEvent> read = std::nullopt);
  void release();

 private:
  struct Free {
    at::Tensor buffer;
    std::optional<StreamEvent> read;
    // Orders the current stream after that reader, before reuse or freeing.
    void wait() const;
  };
  FsdpMemory& memory_;
  std::vector<Free> free_;
};

// A Parameter's place in its unit, and this rank's run of it.
struct FsdpPart {
  Parameter* parameter = nullptr;
  Group* ranks = nullptr;  // that hold its runs
  AxisSet replica_axes;    // along which others hold the same run
  FlatRange range;        // of the flattened local tensor, or of the packed bytes; may be empty
  int64_t first_run = 0;  // start of rank 0's run relative to the parameter: <= 0
  int64_t run_elements = 0;
  at::Tensor model, grad;  // (range.size()); grad undefined if frozen
};

// The ranks over which a parameter is divided: those of the sum of its gradient, or of what it would be if it trained.
ReductionGroups sharding_groups(const Parameter& param, const Groups& groups);

class FsdpUnit {
 public:
  // Moves parameters' values to runs; zero for kMeta. host: for runs in host memory; null: on the device. Parameters,
  // groups, memory and host outlive the unit.
  FsdpUnit(std::string name, const std::vector<Parameter*>& params, const Groups& groups, at::Device device,
           FsdpMemory& memory, int64_t part_elements, HostRuns* host = nullptr);
  ~FsdpUnit();
  FsdpUnit(const FsdpUnit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return params_; }
  // In the order of parameters(), including empty parts. Storages live as long as the unit.
  const std::vector<FsdpPart>& parts() const { return parts_; }
  int64_t parameter_bytes() const;  // of the runs
  int64_t gradient_bytes() const;
  int64_t whole_parameter_bytes() const;
  // Whole gradients of trainable parts, in backward's order.
  std::vector<int64_t> whole_gradient_bytes() const;
  // Its experts are divided over other ranks than its dense parameters: gradients of both come at the same time.
  bool has_experts_apart() const;

  // ---- parameters ---- Starts the all-gather unless whole or in flight.
  void gather();
  // Gathers if needed; then values may be read.
  void wait_until_whole();
  // Frees the values, after any gather in flight.
  void reshard();
  // Zeroed memory for values, without communication: fill it, then keep_run().
  void make_whole_zero();
  void keep_run();
  bool is_whole() const { return state_ == State::kWhole; }

  // ---- gradients, part by part in backward's order ---- opens: called at a part's first contribution; must call
  // open_part(). completes: called when one has all.
  using PartHook = std::function<void(size_t part)>;
  void set_hooks(PartHook opens, const std::function<void()>& completes);
  void begin_step();
  // Gives the part's Parameters views of a whole buffer from the pool.
  void open_part(size_t part, GradientPool& pool);
  bool is_open(size_t part) const { return flats_[part].grad_whole.defined(); }
  // The next part to reduce in this pass, if it is complete or if `all`; else unset.
  std::optional<size_t> next_part(bool all) const;
  // Starts the reduce-scatter of next_part(); Parameters lose their buffers.
  void reduce_part(size_t part, GradientPool& pool, bool in_bf16);
  // Begins the next pass, once all parts are being reduced.
  void begin_pass();
  // Waits, and adds the result to the run (the step's first replaces it).
  void finish_part(size_t part, GradientPool& pool);
  // Sums a part's runs over replicas; zeros without contributions. finish starts it if needed. Host runs must have
  // settled (HostRuns::settle).
  void start_replica_sum(size_t part, bool in_bf16);
  void finish_replica_sums(bool in_bf16);

 private:
  struct Flat {
    std::string label;
    std::vector<Parameter*> params;
    ReductionGroups groups;
    bool is_trainable = false;
    Group& ranks() const { return *groups.shard; }
    int64_t num_elements = 0, run_elements = 0;  // with padding; per rank
    at::Tensor whole, run;                       // (num_elements), its storage resized on use; (run_elements)
    at::Tensor grad_run;                         // (run_elements), the gradient's dtype
    at::Tensor grad_buffer, grad_whole;          // while open or being reduced: from the pool, and its first elements
    at::Tensor reduced;                          // (run_elements) the reduction's result, or a narrow grad_run
    Work gathering, reduction;                   // may overlap
    size_t num_complete = 0;                     // parameters, in this pass
    bool has_gradient = false, is_replica_sum_under_way = false;
  };
  enum class State { kSharded, kGathering, kWhole };

  void add_flat(const std::vector<Parameter*>& params, std::string label, const Groups& groups);
  void allocate_whole(Flat& flat);
  static at::Tensor own_run_in(const Flat& flat, const at::Tensor& whole);

  std::string name_;
  std::vector<Parameter*> params_;
  at::Device device_;
  FsdpMemory& memory_;
  HostRuns* host_;
  StreamEvent copied_;  // gathered runs have reached the device
  std::vector<Flat> flats_;
  std::vector<FsdpPart> parts_;
  State state_ = State::kSharded;
  size_t next_part_ = 0;  // one past it: parts are reduced last first
};

}  // namespace megalith
