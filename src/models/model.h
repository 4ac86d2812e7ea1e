// A model chunk: the part of a model that one pipeline stage (or virtual stage) holds.
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
#include "nn/set_losses.h"
#include "nn/recipe_memory.h"

namespace megalith {

// An objective term of the head: its name and factor.
struct TermScale {
  std::string name = "loss";
  at::Tensor per_weight;  // loss scale / weight of the global batch, as in ObjectiveScales
};

// One microbatch; b and s are this rank's (s is local under context parallelism).
struct ModelInput {
  at::Tensor tokens;        // (b, s) int64; first stage
  at::Tensor labels;        // (b, s) int64; last stage in training and evaluation
  at::Tensor loss_weights;  // (b, s) fp32; last stage; undefined: all one, only for kTokenLosses
  ForwardContext context;
  Bundle more = {};                     // other inputs of the task, by name: images, another sequence
  // Labels are of answer pairs, terms preference_loss()'s: last stage of a decoder.
  std::optional<PreferenceInput> preference = {};
  std::optional<SetInput> sets = {};  // rows of several data sets, whose losses are reported: last stage of a decoder
  std::vector<TermScale> terms = {{}};  // of the head; the main one first
  double per_microbatch = 1;            // factor of terms defined per microbatch: loss scale / the global batch's
                                        // microbatches

  ObjectiveScales scales(size_t term) const { return {terms.at(term).per_weight, per_microbatch}; }
};

enum class HeadOutput {
  kLoss,         // loss terms, with gradients when autograd records
  kTokenLosses,  // per-token losses, no gradients
  kLogits,       // logits of every position
  kLastLogits,   // logits of each sequence's last position
};

struct ModelOutput {
  Bundle boundary;
  std::vector<LossTerm> terms;            // kLoss
  std::vector<Observation> observations;  // of this chunk, listed in Model::observations()
  at::Tensor token_losses;                // (b, s) wide, detached, 0 where the weight is 0; kLoss and kTokenLosses
  at::Tensor logits;                      // (b, s, v) or (b, 1, v), detached; padding columns removed
  // (b, 2), detached; kLogits of a BERT with sentence classes, on ranks that hold sequence starts
  at::Tensor sentence_logits;
};

class ExpertRouter;  // nn/expert_router.h

class Model : public Module {
 public:
  // boundary: from the previous stage; ignored on the first.
  virtual ModelOutput forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) = 0;
  virtual const ModelConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;
  // Input of a chunk that is not the first, for a microbatch of the context's local sizes.
  virtual std::vector<TensorSpec> boundary(const ForwardContext& context) const = 0;
  // Objective terms that any chunk of the whole model adds, in one order on all ranks.
  virtual std::vector<std::string> added_losses() const { return {}; }
  // Observations of any chunk of the whole model, in one order on all ranks.
  virtual std::vector<ObservationSpec> observations() const { return {}; }
  // Before a step's first microbatch.
  virtual void begin_step() {}
  // After the optimizer: moves what the model updates itself. observed: all of observations(), in order. is_made: 0-d
  // bool, false where the step was skipped: the model must stay unchanged too, without a host read; undefined: true.
  virtual void after_step(const std::vector<ObservedTensor>& /*observed*/, const at::Tensor& /*is_made*/) {}
  // By layer number in the whole model; only this chunk's.
  virtual std::map<int64_t, ExpertRouter*> routers() { return {}; }
  const ModelPart& part() const { return part_; }
  // In the order a forward pass runs them: blocks()[i].index == i.
  virtual const std::vector<Block>& blocks() const = 0;
  // Runs every later forward pass's blocks; null: none. Must outlive its use.
  void set_runner(BlockRunner* runner) { runner_ = runner; }
  // State of the layers' recipe; null: none.
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
