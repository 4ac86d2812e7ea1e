// FSDP2 (ZeRO-3): every rank holds a run of every parameter, its gradient and state; a block's parameters are whole
// only while it computes (use_torch_fsdp2).
//
//   forward    layer i     all-gather of i+1 starts, wait for i's | compute | free i
//   backward   layer i     all-gather of i-1 starts, wait for i's | compute, reduce-scatter i's gradient | free i
//
// A unit is a block: a layer, or an embedding or head of at least part_elements. Other parameters (norms, small ones,
// those of several blocks or pipeline stages) form the root unit, whole during a step. In backward a rank holds whole
// the root and two layers, or the root and one other block. A chunk's last unit stays whole until the next computation,
// which may be its backward. What no gradient moves (an expert bias) is never divided.
//
// Gradients are whole only part by part (fsdp_unit.h): one is written while the last is being reduced. They are reduced
// once a microbatch and summed in the run (the root's once a step). A pass is complete when its inputs' gradients
// exist; without those, when the chunk's backward ends. Without backward, the next microbatch (in a pipeline only
// finish_step()) catches up in backward's order: ranks always issue the same collectives.
//
// A pipeline has several microbatches in flight. Each gathers by itself; without reshard_after_forward a unit stays
// whole while any of them awaits its backward. A unit's parts are then whole together: only the last contribution in
// flight tells that a part is complete. Where weight gradients are deferred, reductions are deferred with them, and
// gradients are whole from the inputs' backward to the weights'.
//
// Shards dense parameters over dp_shard x cp and experts over edp_shard, after tensor parallelism; runs are replicas
// over dp_replicate or edp_replicate, summed once a step. Runs outside recomputation, so recomputed blocks are whole.
//
// Source: Zhao et al. 2023, arXiv:2304.11277; PyTorch's fully_shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/groups.h"
#include "nn/deferred_gradients.h"
#include "parallel/data_parallel.h"
#include "parallel/fsdp_unit.h"

namespace megalith {

struct FsdpOptions {
  bool reshard_after_forward = true;  // false: layers stay whole until backward; less traffic, more memory
  bool overlap = true;                // gather a layer ahead, reduce during the next; same numbers
  bool grad_reduce_in_bf16 = false;   // fp32 gradients travel in bf16; accumulation stays in fp32
  int64_t part_elements = 40'000'000;  // closes a part of a unit
  bool cpu_offload = false;           // runs in host memory (host_runs.h) if the device has its own
  std::optional<at::Device> device;   // unset: the parameters'; required if they are on kMeta
};

class Fsdp : public DataParallel, public BlockRunner {
 public:
  // Moves parameters' values to runs and frees the originals. A model built on kMeta (LayerContext::device, with
  // buffer_device) never exists whole: initialise() or fill_units() follows.
  // params  of the model, in registration order
  // blocks  in running order, a chunk's after the other's, each beginning at index 0
  // All of these and groups outlive it; params are unusable without it.
  Fsdp(const std::vector<Parameter*>& params, const std::vector<Block>& blocks, const Groups& groups,
       const FsdpOptions& options);
  Fsdp(const Fsdp&) = delete;
  // deferred  collects weight gradients, and with them their reductions; null: none are deferred. Outlives this.
  void reduce_after(DeferredGradients* deferred) { deferred_ = deferred; }

  // ---- DataParallel ----
  void begin_step() override;
  void begin_microbatch(bool is_last) override;
  void finish_step() override;
  // Drops gathered values: runs are authoritative.
  void publish() override;
  void wait_for_parameters() override {}
  // Unit by unit: the model may exceed this rank's memory. No communication.
  void initialise(uint64_t seed, bool only_adapters) override;
  const std::vector<OwnedPart>& parts() const override { return parts_; }
  std::vector<ParameterRuns> runs() const override { return runs_; }
  const std::vector<OwnedPart>& model_parts() const override { return model_parts_; }
  BlockRunner* runner() override { return this; }
  int64_t parameter_bytes() const override;
  int64_t gradient_bytes() const override;
  int64_t host_bytes() const override;

  // ---- BlockRunner: only the model's blocks, in any mode, also outside a step ----
  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override;

  // ---- Whole parameters, one unit at a time ---- Calls fill with each unit's parameters, whole and zero, and keeps
  // this rank's runs. No communication; optimizers must re-read their masters.
  using UnitVisitor = std::function<void(const std::vector<Parameter*>& params)>;
  void fill_units(const UnitVisitor& fill);
  // Calls visit with each unit's parameters, gathered and read-only. Collective over a sharding group.
  void visit_units(const UnitVisitor& visit);

  // ---- Memory beyond the runs, in bytes ----
  const FsdpMemory& memory() const { return memory_; }
  void reset_peak_memory();
  // Bounds on a step's peaks, from the Placements.
  int64_t whole_parameter_bytes_bound() const;
  int64_t whole_gradient_bytes_bound() const;
  int64_t whole_bytes_bound() const;  // of both together

 private:
  friend struct BeforeUnitBackward;
  friend struct AfterUnitBackward;
  struct Unit {
    std::unique_ptr<FsdpUnit> unit;
    size_t chunk = 0;
    bool is_layer = true;
    int64_t num_awaiting = 0;   // recorded forward passes without backward
    int64_t num_unreduced = 0;  // or without reduction
    bool is_in_backward = false;
  };

  void for_each_unit(const std::function<void(FsdpUnit&)>& visit);  // in backward's order, the root last
  void list_parts(const std::vector<Parameter*>& params);
  void reshard_all();
  void free_units_outside(std::optional<size_t> chunk);
  void enter_backward(size_t unit);
  void before_backward(size_t unit);
  void after_backward(size_t unit);
  // Ends passes without gradients of inputs, in backward's order.
  void finish_backward(const std::function<int64_t(const Unit& unit)>& num_left);
  // Makes room for a part's whole gradient, then takes it.
  void open_part(size_t unit, size_t part);
  // Starts reductions of complete parts that are first in order, or of all that are left.
  void reduce_parts(size_t unit, bool all);
  bool has_before(size_t unit) const;        // a unit in its chunk
  bool gathers_ahead(size_t unit) const;     // its backward gathers the previous unit
  int64_t root_gradient_bytes() const;
  int64_t gradient_peak(size_t unit) const;  // bytes during its backward
  void finish_oldest_reduction();

  const Groups& groups_;
  FsdpOptions options_;
  FsdpMemory memory_;
  GradientPool pool_;
  std::unique_ptr<HostRuns> host_;  // null: runs are on the device
  std::unique_ptr<FsdpUnit> root_;
  std::vector<Parameter*> undivided_;
  std::vector<Unit> units_;  // in running order, without the root
  std::vector<bool> is_in_backward_;  // by chunk
  struct Place {
    std::optional<size_t> unit;  // unset: the root
    std::optional<size_t> next;
    bool is_last = false;  // of its chunk
  };
  std::vector<Place> places_;                               // by block, chunk after chunk
  std::unordered_map<const Module*, size_t> place_of_;      // by a block's first module
  DeferredGradients* deferred_ = nullptr;
  std::vector<OwnedPart> parts_, model_parts_;
  std::vector<ParameterRuns> runs_;
  struct Reduction {
    size_t unit, part;
    bool is_last;  // of the step
  };
  std::deque<Reduction> reductions_;  // reduce-scatters in flight, oldest first
  bool is_in_step_ = false, has_begun_microbatch_ = false, is_last_microbatch_ = false;
};

// Ranks that each hold a part of the parameter under FSDP.
int64_t num_sharding_ranks(const Parameter& param, const Groups& groups);

}  // namespace megalith
