// FSDP2 (ZeRO-3): every rank holds a run of every parameter, its gradient and its optimizer state, and a block's
// parameters are whole only while it computes (use_torch_fsdp2).
//
//   forward    layer i     all-gather of i+1 starts, wait for i's | compute | free i
//   backward   layer i     all-gather of i-1 starts, wait for i's | compute | free i, reduce-scatter i's gradient
//
// A unit is one block that is_layer. All other parameters (embedding, final norm, head, whatever several blocks share)
// are the root unit, which is whole from the start of a step's first forward pass to the end of the step. So beside its
// runs a rank holds at most the root and two layers, and in backward the root's and two layers' gradients as well.
// The last layer is not freed between its forward and its backward, which begins at once.
//
// Gradients are reduced once a microbatch and summed in the run (the root's, which the head's loss fills in forward
// already, once a step). A unit's gradient buffer is taken when its backward begins and must have got everything when
// the gradients of its inputs are there. Where no input needs one, or where backward never comes, the next microbatch
// or finish_step() does what is missing, in the order of backward, so the sequence of collectives is the same on all
// ranks.
//
// Sharding is over dp_shard x cp; over dp_replicate the runs are replicas, whose gradients are summed once a step
// (hybrid sharding). Composes with tensor parallelism, which shards what is local here. Pipelines are not supported:
// one forward and one backward pass at a time.
//
// As a runner it stands outside recomputation: what a block recomputes in backward is computed while the block is
// whole. Source: Zhao et al. 2023, arXiv:2304.11277; PyTorch's fully_shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "parallel/data_parallel.h"
#include "parallel/fsdp_unit.h"

namespace megalith {

struct FsdpOptions {
  bool reshard_after_forward = true;  // false: layers stay whole from forward to backward; less traffic, more memory
  bool overlap = true;                // gather a layer ahead, reduce while the next computes; the same numbers
  bool grad_reduce_in_bf16 = false;   // fp32 gradients travel in bf16; they are summed over microbatches in fp32
  bool cpu_offload = false;           // runs in host memory (host_runs.h), where the device has memory of its own
  std::optional<at::Device> device;   // unset: the parameters'; needed when they are on kMeta
};

class Fsdp : public DataParallel, public BlockRunner {
 public:
  // Takes over the memory of the parameters: their values now are the runs', what they were built with is freed. A
  // model built on kMeta (LayerContext::device, with buffer_device) never exists whole: initialise() or fill_units()
  // follows. params  of the model, in registration order blocks  in the order in which they run: blocks[i].index == i
  // All of these and groups outlive it; params are of no use without it.
  Fsdp(const std::vector<Parameter*>& params, const std::vector<Block>& blocks, const Groups& groups,
       const FsdpOptions& options);
  Fsdp(const Fsdp&) = delete;

  // ---- DataParallel ----
  void begin_step() override;
  void begin_microbatch(bool is_last) override;
  void finish_step() override;
  // The runs are the truth: what was gathered before is dropped.
  void publish() override;
  void wait_for_parameters() override {}
  // One unit at a time, so that a model larger than this rank's memory can be drawn. No communication.
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

  // ---- Whole parameters, one unit at a time ----
  // Calls fill with the parameters of each unit, whole and zero, and keeps this rank's runs of what it wrote. No
  // communication of its own; optimizers must take their masters anew.
  using UnitVisitor = std::function<void(const std::vector<Parameter*>& params)>;
  void fill_units(const UnitVisitor& fill);
  // Calls visit with the parameters of each unit, gathered, to be read: all ranks of a sharding group together.
  void visit_units(const UnitVisitor& visit);

  // ---- Memory beyond the runs, in bytes ----
  const FsdpMemory& memory() const { return memory_; }
  void reset_peak_memory();
  // Bounds of a step's peaks, computed only from the Placements.
  int64_t whole_parameter_bytes_bound() const;
  int64_t whole_gradient_bytes_bound() const;

 private:
  friend struct BeforeUnitBackward;
  friend struct AfterUnitBackward;
  struct Layer {
    std::unique_ptr<FsdpUnit> unit;
    int64_t num_awaiting = 0;  // recorded forward passes whose backward is not done
    bool is_in_backward = false;
  };

  void for_each_unit(const std::function<void(FsdpUnit&)>& visit);  // in the order of backward, the root last
  void list_parts(const std::vector<Parameter*>& params);
  void reshard_all();
  void before_backward(size_t layer);
  void after_backward(size_t layer);
  void finish_oldest_reduction();
  void finish_backward();

  const Groups& groups_;
  FsdpOptions options_;
  FsdpMemory memory_;
  GradientPool pool_;
  std::unique_ptr<HostRuns> host_;  // null: the runs are on the device
  std::unique_ptr<FsdpUnit> root_;
  std::vector<Layer> layers_;
  struct Place {
    std::optional<size_t> layer;  // nothing: the root
    std::optional<size_t> next;   // the layer that runs after it
  };
  std::vector<Place> places_;  // by block index
  std::vector<OwnedPart> parts_, model_parts_;
  std::vector<ParameterRuns> runs_;
  std::deque<size_t> reductions_;  // layers whose reduce-scatter is under way, oldest first
  bool is_in_step_ = false, is_last_microbatch_ = false;
};

}  // namespace megalith
