// A chunk made of unit objects: one loop for every kind of model. A unit says what it computes. How layers are grouped
// into blocks, what travels between blocks and over the borders of stages, and what can be freed follow from the list
// of units (nn/unit.h).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "nn/norm.h"

namespace megalith {

// One forward pass, shared by all units of a chunk; a kind of model derives from it what its own units share: masks,
// angles. It lives as long as backward may run a layer again.
struct UnitPass {
  ForwardContext context;
  // For units without a layer, and only while the pass runs.
  const ModelInput* input = nullptr;
  HeadOutput head = HeadOutput::kLoss;
  ModelOutput* output = nullptr;  // the last unit's

  virtual ~UnitPass() = default;
  template <typename Pass>
  const Pass& as() const {
    return static_cast<const Pass&>(*this);
  }
};

// Tensors that travel, each as its two terms; most have only a delta.
using Streams = std::vector<ResidualStream>;

class UnitModule : public Module {
 public:
  // in, and the result: what its step reads and gives, in their order. A head gives nothing: it writes the output.
  virtual Streams forward(Streams in, const UnitPass& pass) = 0;
  // The sequences that it reads in a pass of this shape.
  virtual CostShape shape_in(const CostShape& shape) const { return shape; }
  // Adds its routers by layer number in the whole model.
  virtual void add_routers(std::map<int64_t, ExpertRouter*>& /*routers*/) {}
};

class UnitChunk : public Model {
 public:
  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  const ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  std::vector<TensorSpec> boundary(const ForwardContext& context) const final;
  std::vector<std::string> added_losses() const override;
  std::vector<ObservationSpec> observations() const override;
  void after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) override;
  std::map<int64_t, ExpertRouter*> routers() override;
  const std::vector<Block>& blocks() const override { return blocks_; }

 protected:
  // The configuration passed check_model_config(), and is_text asks for its vocab_size; UserErrors otherwise, and where
  // it does not divide over the ranks. layout_errors: what the kind itself has against the ranks.
  UnitChunk(const ModelConfig& config, const LayerContext& context, const ModelPart& part, bool is_text,
            std::vector<UserError> layout_errors = {});

  // What a unit becomes here. Steps of a unit with the letter of a layer join blocks of layers, except those with a
  // block's name of their own.
  struct Step {
    std::unique_ptr<UnitModule> module;
    std::string block;  // name of a block of its own
    std::vector<std::string> reads, gives;
    bool adds_inputs = false;  // Block::adds_inputs of a block that a layer begins in the middle of its stack
  };
  static Step layer_step(const Unit& unit, std::unique_ptr<UnitModule> module);
  static Step block_step(const Unit& unit, std::unique_ptr<UnitModule> module, std::string block);

  // To be called once, by the constructor of each kind.
  void make_units(const LayerContext& context);
  // None for a unit that a later one makes, too. layer: number of layers before it in the whole model.
  virtual std::vector<Step> make_steps(const Unit& unit, const LayerContext& context, int64_t layer) = 0;
  // Context, input, head and output are set by the caller, from this context.
  virtual std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const = 0;
  // Rows of a tensor that travels, on this rank.
  virtual int64_t num_rows(const std::string& tensor, const ForwardContext& context) const = 0;
  // Whether a pass leaves out the steps of this unit.
  virtual bool skips(const Unit& /*unit*/, const UnitPass& /*pass*/) const { return false; }

  // Runs the steps from what the stage before gave; returns what is left at the end.
  Bundle run(const std::shared_ptr<const UnitPass>& pass, const Bundle& boundary) const;
  // The context of layer `layer` of `num_layers`: without the recipe where that leaves the layer plain.
  static LayerContext layer_context(const LayerContext& context, int64_t layer, int64_t num_layers);
  // What this rank has of it so far: in this chunk, or in another one (ModelPart::found); null: nothing.
  Parameter* find_parameter(const std::string& name) const;
  // Ranks over which sequence parallelism splits tokens.
  int64_t token_split() const { return token_split_; }
  Group& cp() const { return *cp_; }

  CostShape shape_of(const Module& child, const CostShape& shape) const override;

 private:
  // A step with its tensors as places in a pass's state.
  struct Placed {
    const Unit* unit;
    UnitModule* module;
    std::vector<size_t> reads, gives;
  };
  // The steps of a block.
  struct Run {
    std::vector<Placed> steps;
    std::vector<size_t> reads, gives;  // of the block as a whole
    std::vector<size_t> dead;          // not read again
  };

  size_t place_of(const std::string& tensor);
  void add_step(const Unit& unit, Step step, int64_t layer, bool is_first_of_stack);
  void find_life_times();
  BlockBody body_of(const Run& run, const std::shared_ptr<const UnitPass>& pass) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  int64_t token_split_;
  std::shared_ptr<Group> cp_;
  std::vector<std::unique_ptr<UnitModule>> modules_;
  std::vector<std::string> tensors_;  // names of the places of a pass's state
  std::vector<Block> blocks_;
  std::vector<Run> runs_;
  int64_t layers_here_ = 0;
};

}  // namespace megalith
