// A model chunk: the part of a model that one pipeline stage (or one of its virtual stages) holds.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/model_config.h"
#include "models/model_part.h"
#include "models/observation.h"
#include "nn/block_runner.h"
#include "nn/forward.h"
#include "nn/module.h"
#include "nn/preference_loss.h"
#include "nn/recipe_memory.h"

namespace megalith {

// A term of the objective that the head computes: its name, and the factor by which its sum enters.
struct TermScale {
  std::string name = "loss";
  at::Tensor per_weight;  // loss scale / weight of the global batch, as in ObjectiveScales
};

// One microbatch as a model sees it. b and s are this rank's (s is the local part under context parallelism).
struct ModelInput {
  at::Tensor tokens;        // (b, s) int64; first stage
  at::Tensor labels;        // (b, s) int64; last stage in training and evaluation
  at::Tensor loss_weights;  // (b, s) fp32; last stage; undefined: all one, only for kTokenLosses
  ForwardContext context;
  Bundle more = {};                     // what else a task gives its models, by name: images, another sequence
  // The labels are of pairs of answers, and the terms are preference_loss()'s: last stage of a decoder.
  std::optional<PreferenceInput> preference = {};
  std::vector<TermScale> terms = {{}};  // of the head; the main one first
  double per_microbatch = 1;            // of terms defined per microbatch: loss scale / the global batch's microbatches

  ObjectiveScales scales(size_t term) const { return {terms.at(term).per_weight, per_microbatch}; }
};

// What the last stage computes.
enum class HeadOutput {
  kLoss,         // loss terms, with gradients when autograd records
  kTokenLosses,  // per-token losses, no gradients
  kLogits,       // logits of every position
  kLastLogits,   // logits of each sequence's last position
};

struct ModelOutput {
  Bundle boundary;                        // what the next stage gets; empty on the last
  std::vector<LossTerm> terms;            // kLoss
  std::vector<Observation> observations;  // of this chunk, each with a place in Model::observations()
  // Predictions.
  at::Tensor token_losses;  // (b, s) wide, detached, 0 where the weight is 0; kLoss and kTokenLosses
  at::Tensor logits;        // (b, s, v) or (b, 1, v), detached; padding columns removed
  // (b, 2), detached; kLogits of a BERT that classifies sentences, on the ranks that hold their beginnings
  at::Tensor sentence_logits;
};

class ExpertRouter;  // nn/expert_router.h

class Model : public Module {
 public:
  // boundary: from the stage before; ignored on the first.
  virtual ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) = 0;
  virtual const ModelConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;
  // What a chunk that is not the first gets from the one before, for a microbatch whose sizes on this rank are those of
  // the context.
  virtual std::vector<TensorSpec> boundary(const ForwardContext& context) const = 0;
  // Terms of the objective that some chunk of the whole model adds to its task's, in one order on all ranks.
  virtual std::vector<std::string> added_losses() const { return {}; }
  // What some chunk of the whole model observes, in one order on all ranks.
  virtual std::vector<ObservationSpec> observations() const { return {}; }
  // After the optimizer's update: moves what the model itself moves by what was observed in the step. All of
  // observations(), in their order. is_made: 0-d bool; false where the optimizer left everything as it was, and so must
  // the model, without reading it on the host; undefined: true.
  virtual void after_step(const std::vector<ObservedTensor>& /*observed*/, const at::Tensor& /*is_made*/) {}
  // The routers of this chunk's layers with experts, by layer number in the whole model.
  virtual std::map<int64_t, ExpertRouter*> routers() { return {}; }
  const ModelPart& part() const { return part_; }
  // What a forward pass runs through the runner, in this order: blocks()[i].index == i.
  virtual const std::vector<Block>& blocks() const = 0;
  // What every forward pass runs its blocks through from now on; null: nothing. It outlives its use.
  void set_runner(BlockRunner* runner) { runner_ = runner; }
  // What the recipe of its layers remembers, for who runs its passes; null: nothing.
  void set_recipe_memory(std::shared_ptr<RecipeMemory> memory) { recipe_memory_ = std::move(memory); }
  RecipeMemory* recipe_memory() const { return recipe_memory_.get(); }

 protected:
  explicit Model(ModelPart part) : part_(std::move(part)) {}
  BlockRunner* runner() const { return runner_; }

 private:
  BlockRunner* runner_ = nullptr;
  std::shared_ptr<RecipeMemory> recipe_memory_;
  ModelPart part_;
};

}  // namespace megalith
