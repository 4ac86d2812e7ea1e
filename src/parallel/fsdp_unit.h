// The memory of one FSDP unit: its parameters and gradients, whole while they are used and a run of them in between.
//
// The parameters of one dtype, those that train apart from those that are frozen, lie behind one another in a flat
// buffer that is padded to a multiple of the shard group's size; rank r owns the r-th of the equal runs. The
// Parameters' values are views of the flat buffer, whose storage is empty while the unit is sharded: their shapes stay
// known, and nothing is copied when the unit is gathered. Every collective carries the unit's name.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/stream.h"
#include "nn/parameter.h"
#include "parallel/host_runs.h"

namespace megalith {

// Bytes that the units of this rank hold beyond their runs, now and at most.
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

// Buffers for whole gradients, used over and over within a step.
class GradientPool {
 public:
  explicit GradientPool(FsdpMemory& memory) : memory_(memory) {}
  // At least so many elements, content void.
  at::Tensor take(int64_t num_elements, const at::TensorOptions& options);
  // read: another stream reads it until then
  void give_back(at::Tensor buffer, std::optional<StreamEvent> read = std::nullopt);
  // Frees what was given back.
  void release();

 private:
  struct Free {
    at::Tensor buffer;
    std::optional<StreamEvent> read;
    // Whoever takes or frees it does so on the current stream, behind that reader.
    void wait() const;
  };
  FsdpMemory& memory_;
  std::vector<Free> free_;
};

// Where a Parameter lies in its unit, and what this rank owns of it.
struct FsdpPart {
  Parameter* parameter = nullptr;
  FlatRange range;        // of the flattened local tensor; may be empty
  int64_t first_run = 0;  // where rank 0's run begins, counted from its first element: 0 or less
  int64_t run_elements = 0;
  at::Tensor model, grad;  // (range.size()); grad undefined when frozen
};

class FsdpUnit {
 public:
  // Takes over the parameters' values, and leaves them sharded; of parameters on kMeta (shape only) the runs are zero.
  // host: the runs lie in host memory, and come from there; null: on the device. The parameters, the group, memory and
  // host outlive the unit.
  FsdpUnit(std::string name, const std::vector<Parameter*>& params, Group& shard_group, at::Device device,
           FsdpMemory& memory, HostRuns* host = nullptr);
  FsdpUnit(const FsdpUnit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return params_; }
  bool has_trainable() const { return has_trainable_; }
  // In the order of parameters(), those of which this rank owns nothing included. Storages stay for the unit's life.
  const std::vector<FsdpPart>& parts() const { return parts_; }
  int64_t parameter_bytes() const;  // of the runs
  int64_t gradient_bytes() const;
  int64_t whole_parameter_bytes() const;
  int64_t whole_gradient_bytes() const;

  // ---- parameters ----
  // Starts the all-gather, unless the values are whole or on their way.
  void gather();
  // Gathers if need be; the values may be read afterwards.
  void wait_until_whole();
  // Frees the values; ends a gather under way first.
  void reshard();
  // Memory for the values, filled with zeros, without communication: to fill them and keep_run().
  void make_whole_zero();
  void keep_run();
  bool is_whole() const { return state_ == State::kWhole; }

  // ---- gradients ----
  void begin_step() { has_gradient_ = is_replica_sum_under_way_ = false; }
  // Gives every trainable Parameter a view of a whole buffer from the pool.
  void open_gradients(GradientPool& pool);
  bool are_gradients_open() const { return are_gradients_open_; }
  // Starts the reduce-scatter of what was added since; the Parameters lose their buffers.
  void reduce_gradients(GradientPool& pool, bool in_bf16);
  // Waits for it and adds the result to the run (the first of a step replaces it).
  void finish_reduction(GradientPool& pool);
  // Sum of the runs over the groups that shard alike; zeros where nothing came. finish starts it if need be. Runs in
  // host memory must have come (HostRuns::settle) before it starts.
  void start_replica_sum(Group& replicas, bool in_bf16);
  void finish_replica_sum(Group& replicas, bool in_bf16);

 private:
  struct Flat {
    std::string label;
    std::vector<Parameter*> params;
    bool is_trainable = false;
    int64_t num_elements = 0, run_elements = 0;  // with padding; of one rank
    at::Tensor whole, run;                       // (num_elements) with a storage that comes and goes; (run_elements)
    at::Tensor grad_run;                         // (run_elements) in the gradient's dtype
    at::Tensor grad_buffer, grad_whole;          // while open or being reduced: from the pool, and its first elements
    at::Tensor reduced;                          // (run_elements) what the reduction brings, or a narrow grad_run
    Work gathering, reduction;                   // may be under way together
  };
  enum class State { kSharded, kGathering, kWhole };

  void add_flat(const std::vector<Parameter*>& params, std::string label, at::Device device);
  void allocate_whole(Flat& flat);
  at::Tensor own_run_in(const Flat& flat, const at::Tensor& whole) const;

  std::string name_;
  std::vector<Parameter*> params_;
  Group& group_;
  at::Device device_;
  FsdpMemory& memory_;
  HostRuns* host_;
  StreamEvent copied_;  // the runs of a gather under way are on the device
  std::vector<Flat> flats_;
  std::vector<FsdpPart> parts_;
  State state_ = State::kSharded;
  bool has_trainable_ = false, are_gradients_open_ = false, has_gradient_ = false, is_replica_sum_under_way_ = false;
};

}  // namespace megalith
