#include "models/unit_chunk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "comm/groups.h"
#include "models/expert_reports.h"
#include "nn/matmul_recipe.h"

namespace megalith {

UnitChunk::UnitChunk(const ModelConfig& config, const LayerContext& context, const ModelPart& part, bool is_text,
                     std::vector<UserError> layout_errors)
    : Model(part),
      config_(config),
      dtype_(context.dtype),
      token_split_(context.is_sequence_parallel ? context.groups->tp->size() : 1),
      cp_(context.groups->cp) {
  std::vector<UserError> errors = check_model_config(config);
  if (is_text && !config.vocab_size) {
    errors.emplace_back("vocab_size is not set", "set vocab_size, or name a tokenizer whose vocabulary gives it");
  }
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  if (errors.empty()) {
    errors = check_model_layout(config, {sizes.tp, sizes.ep, sizes.etp});
    errors.insert(errors.end(), layout_errors.begin(), layout_errors.end());
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
}

// ---- Making ----

Unit layer_unit(const std::string& kind, const std::string& stack, int64_t number,
                const std::vector<std::string>& reads, const std::vector<std::string>& gives) {
  return {.kind = kind,
          .name = fmt::format("{}.{}", stack, number),
          .number = number,
          .letter = UnitLetter::kLayer,
          .layers_worth = 1,
          .reads = reads,
          .gives = gives};
}

UnitModule& UnitChunk::add_block(const Unit& unit, std::string block) {
  UnitModule& module = *modules_.emplace_back(std::make_unique<UnitModule>());
  module.block = std::move(block);
  module.reads = unit.reads;
  module.gives = unit.gives;
  register_module(module);
  return module;
}

LayerContext UnitChunk::layer_context(const LayerContext& context, int64_t layer, int64_t num_layers) {
  LayerContext own = context;
  if (own.recipe != nullptr && own.recipe->leaves_plain(layer, num_layers)) own.recipe = nullptr;
  return own;
}

Parameter* UnitChunk::find_parameter(const std::string& name) const {
  Parameter* found = nullptr;
  for_each_parameter([&](Parameter& parameter) {
    if (found == nullptr && parameter.name() == name) found = &parameter;
  });
  return found != nullptr ? found : part().find(name);
}

void UnitChunk::make_units(const LayerContext& context) {
  MEGALITH_CHECK(part().layers_per_block > 0, "blocks of {} layers", part().layers_per_block);
  int64_t layer = count_units(units_in(part().units, {0, part().range.first}), UnitLetter::kLayer);
  const std::string* stack = nullptr;
  std::vector<UsedParameter> used_by_next;  // of units that the next one runs (prediction modules)
  for (const Unit& unit : part().own_units()) {
    const size_t first = modules_.size();
    make_unit(unit, context, layer);
    for (size_t i = first; i < modules_.size(); ++i) {
      add_to_blocks(unit, *modules_[i], layer, stack == nullptr || *stack != unit.kind);
    }
    if (first == modules_.size()) {
      used_by_next.insert(used_by_next.end(), unit.uses.begin(), unit.uses.end());
    } else {
      for (const UsedParameter& used : used_by_next) blocks_.back().uses.push_back(used.parameter);
      used_by_next.clear();
    }
    stack = &unit.kind;
    if (unit.letter == UnitLetter::kLayer) ++layer;
  }
  find_life_times();
}

// Blocks group layers counted through a chunk's stacks, without crossing stacks. One that a new stack cuts short is
// recomputed as its whole group is.
void UnitChunk::add_to_blocks(const Unit& unit, UnitModule& module, int64_t layer, bool begins_stack) {
  const bool is_layer = module.block.empty();
  const int64_t place = is_layer ? layers_here_++ % part().layers_per_block : 0;
  if (place == 0 || begins_stack) {
    blocks_.push_back({.name = is_layer ? unit.name : module.block,
                       .index = std::ssize(blocks_),
                       .modules = {},
                       .uses = {},
                       .is_layer = is_layer,
                       .layer = is_layer ? layer - place : -1,
                       .adds_inputs = module.adds_inputs && !begins_stack});
    runs_.emplace_back();
  }
  Step step{.unit = &unit, .module = &module, .reads = {}, .gives = {}};
  for (const std::string& name : module.reads) step.reads.push_back(place_of(name));
  for (const std::string& name : module.gives) step.gives.push_back(place_of(name));
  blocks_.back().modules.push_back(&module);
  for (const UsedParameter& used : unit.uses) blocks_.back().uses.push_back(used.parameter);
  runs_.back().steps.push_back(std::move(step));
}

size_t UnitChunk::place_of(const std::string& tensor) {
  const auto found = std::ranges::find(tensors_, tensor);
  if (found == tensors_.end()) return tensors_.push_back(tensor), tensors_.size() - 1;
  return static_cast<size_t>(found - tensors_.begin());
}

// A block takes what its steps read and did not give themselves, and gives what is read after it.
void UnitChunk::find_life_times() {
  std::set<size_t> live;
  for (const std::string& name : boundary_before(part().units, part().range.end())) live.insert(place_of(name));
  if (part().is_last()) live.insert(runs_.back().steps.back().gives.begin(), runs_.back().steps.back().gives.end());
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    for (size_t place = 0; place < tensors_.size(); ++place) {
      if (!live.contains(place)) run->dead.push_back(place);
    }
    std::set<size_t> given;
    for (const Step& step : run->steps) {
      for (const size_t place : step.reads) {
        if (!given.contains(place) && std::ranges::find(run->reads, place) == run->reads.end()) {
          run->reads.push_back(place);
        }
      }
      for (const size_t place : step.gives) {
        if (given.insert(place).second && live.contains(place)) run->gives.push_back(place);
      }
    }
    for (const size_t place : given) live.erase(place);
    live.insert(run->reads.begin(), run->reads.end());
  }
}

// ---- A pass ----

ModelOutput UnitChunk::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  ForwardContext context = input.context;
  if (config_.has_experts()) context.expert_records = std::make_shared<ExpertRecords>();
  context.objective_scale = head == HeadOutput::kLoss ? input.per_microbatch : 0;
  ModelOutput output;
  const std::shared_ptr<UnitPass> pass = make_pass(input, context);
  pass->input = &input;
  pass->head = head;
  pass->output = &output;
  Bundle given = run(pass, boundary);
  // Backward may keep the pass longer than these live.
  pass->input = nullptr;
  pass->output = nullptr;
  output.boundary = part().is_last() ? std::move(given) : outgoing_bundle(part().units, part().range, given, boundary);
  if (context.expert_records) report_experts(config_, *cp_, *context.expert_records, head, output);
  return output;
}

Bundle UnitChunk::run(const std::shared_ptr<const UnitPass>& pass, const Bundle& boundary) const {
  Streams state(tensors_.size());
  for (size_t place = 0; place < tensors_.size(); ++place) {
    if (const at::Tensor* received = boundary.find(tensors_[place])) state[place].delta = *received;
  }
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    if (skips(*run.steps[0].unit, *pass)) continue;
    std::vector<at::Tensor> in;
    for (const size_t place : run.reads) in.insert(in.end(), {state[place].delta, state[place].residual});
    const std::vector<at::Tensor> out = run_block(runner(), blocks_[i], in, body_of(run, pass));
    for (size_t k = 0; k < run.gives.size(); ++k) state[run.gives[k]] = {out[2 * k], out[2 * k + 1]};
    for (const size_t place : run.dead) state[place] = {};
    if (!run.gives.empty()) continue;
    auto objective = out.begin();
    for (LossTerm& term : pass->output->terms) {
      if (term.objective.defined()) term.objective = *objective++;
    }
  }
  Bundle left;
  for (size_t place = 0; place < tensors_.size(); ++place) {
    if (state[place].delta.defined()) left.set(tensors_[place], state[place].sum());
  }
  return left;
}

// By value: a runner may call it after this pass. Runs live as long as the chunk.
BlockBody UnitChunk::body_of(const Run& run, const std::shared_ptr<const UnitPass>& pass) const {
  return [&run, pass, num_places = tensors_.size()](const std::vector<at::Tensor>& inputs) {
    Streams inside(num_places);
    for (size_t k = 0; k < run.reads.size(); ++k) inside[run.reads[k]] = {inputs[2 * k], inputs[2 * k + 1]};
    for (const Step& step : run.steps) {
      Streams read;
      for (const size_t place : step.reads) read.push_back(inside[place]);
      for (const size_t place : step.gives) inside[place] = {};
      Streams given = step.module->forward(std::move(read), *pass);
      for (size_t k = 0; k < step.gives.size(); ++k) inside[step.gives[k]] = std::move(given[k]);
    }
    std::vector<at::Tensor> out;
    for (const size_t place : run.gives) out.insert(out.end(), {inside[place].delta, inside[place].residual});
    if (!run.gives.empty()) return out;
    // Only objectives are differentiable.
    for (const LossTerm& term : pass->output->terms) {
      if (term.objective.defined()) out.push_back(term.objective);
    }
    return out;
  };
}

std::vector<TensorSpec> UnitChunk::boundary(const ForwardContext& context) const {
  std::vector<TensorSpec> tensors;
  for (std::string& name : boundary_before(part().units, part().range.first)) {
    const int64_t rows = num_rows(name, context);
    tensors.push_back({std::move(name), {rows, config_.hidden_size}, dtype_});
  }
  return tensors;
}

// ---- What the whole model adds to its task ----

std::vector<std::string> UnitChunk::added_losses() const {
  std::vector<std::string> names = expert_loss_names(config_);
  for (int64_t depth = 1; depth <= config_.num_prediction_modules(); ++depth) {
    names.push_back(fmt::format("mtp_{} loss", depth));
  }
  return names;
}

std::vector<ObservationSpec> UnitChunk::observations() const {
  return expert_observations(config_, config_.num_all_layers() + config_.num_prediction_modules());
}

void UnitChunk::begin_step() {
  for (const auto& [layer, router] : routers()) router->begin_step();
}

void UnitChunk::after_step(const std::vector<ObservedTensor>& observed, const at::Tensor& is_made) {
  move_expert_biases(config_, routers(), observed, is_made);
}

std::map<int64_t, ExpertRouter*> UnitChunk::routers() {
  std::map<int64_t, ExpertRouter*> all;
  for (const auto& module : modules_) all.insert(module->routers.begin(), module->routers.end());
  return all;
}

}  // namespace megalith
