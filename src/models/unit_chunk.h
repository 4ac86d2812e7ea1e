// One loop for every kind of model. A unit is modules and a function; blocks, tensors that travel between blocks and
// stages, and what can be freed follow from the list of units (nn/unit.h).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "nn/norm.h"

namespace megalith {

// State of a forward pass shared by a chunk's units; subclasses add masks, angles etc. Lives until backward can no
// longer rerun a layer.
struct UnitPass {
  ForwardContext context;
  // Only during the pass, for units without a layer.
  const ModelInput* input = nullptr;
  HeadOutput head = HeadOutput::kLoss;
  ModelOutput* output = nullptr;  // the last unit's

  virtual ~UnitPass() = default;
  template <typename Pass>
  const Pass& as() const {
    return static_cast<const Pass&>(*this);
  }
};

// Travelling tensors, each as two terms; most have only a delta.
using Streams = std::vector<ResidualStream>;

// A unit's modules, and a function from tensors read to tensors given, which may refer to the modules and the chunk's
// configuration.
class UnitModule final : public Module {
 public:
  std::string block;  // name of its own block; empty: a layer, which may share one
  std::vector<std::string> reads, gives;
  // A head gives nothing: it writes the output.
  std::function<Streams(Streams in, const UnitPass& pass)> forward;
  bool adds_inputs = false;                  // Block::adds_inputs, unless a stack begins here
  std::map<int64_t, ExpertRouter*> routers;  // by layer number in the whole model
  // Shape of a part's pass where it differs: another sequence, or several passes.
  std::function<CostShape(const Module& part, CostShape shape)> cost_shape;

  template <typename Part, typename... Arguments>
  Part& add(Arguments&&... arguments) {
    auto made = std::make_unique<Part>(std::forward<Arguments>(arguments)...);
    Part& part = *made;
    register_module(part);
    parts_.push_back(std::move(made));
    return part;
  }
  void add_router(int64_t layer, ExpertRouter* router) {
    if (router != nullptr) routers[layer] = router;
  }

 protected:
  CostShape shape_of(const Module& part, const CostShape& shape) const override {
    return cost_shape ? cost_shape(part, shape) : shape;
  }

 private:
  std::vector<std::unique_ptr<Module>> parts_;
};

// "<stack>.<number>".
Unit layer_unit(const std::string& kind, const std::string& stack, int64_t number,
                const std::vector<std::string>& reads, const std::vector<std::string>& gives);

class UnitChunk : public Model {
 public:
  ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) override;
  const ModelConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  std::vector<TensorSpec> boundary(const ForwardContext& context) const final;
  std::vector<std::string> added_losses() const override;
  std::vector<ObservationSpec> observations() const override;
  void begin_step() override;
  void after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) override;
  std::map<int64_t, ExpertRouter*> routers() override;
  const std::vector<Block>& blocks() const override { return blocks_; }

 protected:
  // UserErrors when config fails check_model_config(), lacks vocab_size (if is_text), or does not divide over the
  // ranks; layout_errors: the subclass's.
  UnitChunk(const ModelConfig& config, const LayerContext& context, const ModelPart& part, bool is_text,
            std::vector<UserError> layout_errors = {});

  // Called once by each subclass's constructor.
  void make_units(const LayerContext& context);
  // Adds the unit's modules, if any. layer: layers before it in the whole model.
  virtual void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) = 0;
  // Read and give what the unit does, unless changed.
  UnitModule& add_layer(const Unit& unit) { return add_block(unit, ""); }
  UnitModule& add_block(const Unit& unit, std::string block);
  virtual std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const = 0;
  // This rank's rows of a travelling tensor.
  virtual int64_t num_rows(const std::string& tensor, const ForwardContext& context) const = 0;
  virtual bool skips(const Unit& /*unit*/, const UnitPass& /*pass*/) const { return false; }

  // boundary: from the previous stage. Returns the remaining tensors.
  Bundle run(const std::shared_ptr<const UnitPass>& pass, const Bundle& boundary) const;
  // Drops the recipe if it leaves layer `layer` of `num_layers` plain.
  static LayerContext layer_context(const LayerContext& context, int64_t layer, int64_t num_layers);
  // In this chunk so far, or another of this rank (ModelPart::found); else null.
  Parameter* find_parameter(const std::string& name) const;
  // Ranks over which sequence parallelism splits tokens.
  int64_t token_split() const { return token_split_; }

 private:
  // A unit, its tensors as places in a pass's state.
  struct Step {
    const Unit* unit;
    UnitModule* module;
    std::vector<size_t> reads, gives;
  };
  struct Run {
    std::vector<Step> steps;
    std::vector<size_t> reads, gives;
    std::vector<size_t> dead;  // not read again
  };

  size_t place_of(const std::string& tensor);
  void add_to_blocks(const Unit& unit, UnitModule& module, int64_t layer, bool begins_stack);
  void find_life_times();
  BlockBody body_of(const Run& run, const std::shared_ptr<const UnitPass>& pass) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  int64_t token_split_;
  std::shared_ptr<Group> cp_;
  std::vector<std::unique_ptr<UnitModule>> modules_;
  std::vector<std::string> tensors_;  // names of a pass state's places
  std::vector<Block> blocks_;
  std::vector<Run> runs_;
  int64_t layers_here_ = 0;
};

}  // namespace megalith
