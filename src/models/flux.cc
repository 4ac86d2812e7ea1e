// See flux.h.
#include "models/flux.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "nn/matmul_recipe.h"
#include "ops/arguments.h"

namespace megalith {

namespace {

const ModelConfig& checked_flux(const ModelConfig& config) {
  std::vector<UserError> errors = check_model_config(config);
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return config;
}

// A text and a picture behind it, sample by sample, as one sequence: (b l, h), (b n, h) -> (b (l + n), h).
at::Tensor joined_streams(const at::Tensor& text, const at::Tensor& image, int64_t b) {
  const auto by_sample = [b](const at::Tensor& x) { return x.view({b, -1, x.size(1)}); };
  return at::cat({by_sample(text), by_sample(image)}, 1).view({-1, text.size(1)});
}

// (b, n / ranks, c) of each rank -> (b, n, c).
at::Tensor whole_tokens(const at::Tensor& own, int64_t ranks, Group* tp) {
  if (ranks == 1) return own;
  const int64_t b = own.size(0), c = own.size(2);
  const at::Tensor all = tp->gathered(own.contiguous(), "velocity");
  return all.view({ranks, b, -1, c}).transpose(0, 1).reshape({b, -1, c}).contiguous();
}

at::Tensor find_input(const ModelInput& input, std::string_view name) {
  const at::Tensor* tensor = input.more.find(name);
  if (tensor != nullptr) return *tensor;
  throw UserError(fmt::format("model_type diffusion_model got no {}", name),
                  "this command or task is for language models; train and generate take model_type diffusion_model");
}

}  // namespace

std::vector<Unit> flux_units(const ModelConfig& config) {
  const std::vector<std::string> streams = {"image", "text"};
  std::vector<Unit> units;
  units.push_back({.kind = kFluxEmbeddingUnit,
                   .name = "x_embedder",
                   .letter = UnitLetter::kEmbedding,
                   .gives = {"image", "text", "vec"}});
  for (int64_t layer = 0; layer < config.num_joint_layers; ++layer) {
    units.push_back({.kind = kFluxJointUnit,
                     .name = fmt::format("transformer_blocks.{}", layer),
                     .number = layer,
                     .letter = UnitLetter::kLayer,
                     .layers_worth = 1,
                     .reads = {"image", "text", "vec"},
                     .gives = streams});
  }
  for (int64_t layer = 0; layer < config.num_single_layers; ++layer) {
    const bool joins = layer == 0;
    units.push_back({.kind = kFluxSingleUnit,
                     .name = fmt::format("single_transformer_blocks.{}", layer),
                     .number = layer,
                     .letter = UnitLetter::kLayer,
                     .layers_worth = 1,
                     .reads = joins ? std::vector<std::string>{"image", "text", "vec"}
                                    : std::vector<std::string>{"hidden", "vec"},
                     .gives = {"hidden"}});
  }
  units.push_back(
      {.kind = kFluxHeadUnit, .name = "proj_out", .letter = UnitLetter::kHead, .reads = {"hidden", "vec"}});
  return units;
}

RotaryAngles flux_angles(const at::Tensor& positions, const FluxOptions& options, at::ScalarType dtype) {
  const auto wide = positions.options().dtype(at::kDouble);
  std::vector<at::Tensor> angles;
  for (size_t axis = 0; axis < options.axes_dim.size(); ++axis) {
    const int64_t channels = options.axes_dim[axis];
    const at::Tensor exponents = at::arange(0, channels, 2, wide) / static_cast<double>(channels);
    const at::Tensor frequencies = (exponents * -std::log(options.theta)).exp();
    angles.push_back(positions.select(1, static_cast<int64_t>(axis)).to(at::kDouble).unsqueeze(1) *
                     frequencies.unsqueeze(0));
  }
  const at::Tensor all = at::cat(angles, 1).unsqueeze(0);
  const auto table = ops::wide_dtype(dtype);
  return {.cos = all.cos().to(table), .sin = all.sin().to(table)};
}

Flux::Flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
    : Model(part),
      config_(checked_flux(config)),
      dtype_(context.dtype),
      kernels_(context.kernels),
      tp_(context.groups->tp.get()),
      ranks_(context.is_sequence_parallel ? tp_->size() : 1) {
  if (context.groups->cp->size() > 1) {
    throw UserError(fmt::format("context_parallel_size {} with model_type diffusion_model, whose text and picture are "
                                "one sequence that no such ranks share",
                                context.groups->cp->size()),
                    "leave it out: tensor, sequence, pipeline and data parallelism take model_type diffusion_model");
  }
  const Mesh::Sizes& sizes = context.groups->mesh.sizes();
  std::vector<UserError> errors = check_model_layout(config, {sizes.tp, sizes.ep, sizes.etp});
  if (!errors.empty()) throw UserErrors(std::move(errors));
  for (const Unit& unit : this->part().own_units()) make(unit, context);
}

// ---- Making ----

void Flux::make(const Unit& unit, const LayerContext& context) {
  if (unit.kind == kFluxEmbeddingUnit) return make_embedding(context);
  if (unit.kind == kFluxHeadUnit) return make_head(context);
  const bool is_joint = unit.kind == kFluxJointUnit;
  MEGALITH_CHECK(is_joint || unit.kind == kFluxSingleUnit, "FLUX has no unit of kind {}", unit.kind);
  const int64_t number = is_joint ? unit.number : config_.num_joint_layers + unit.number;
  LayerContext own = context;
  if (own.recipe != nullptr && own.recipe->leaves_plain(number, config_.num_all_layers())) own.recipe = nullptr;
  if (is_joint) {
    const bool is_first = joint_.empty();
    joint_.push_back(std::make_unique<FluxJointBlock>(own, unit.name, block_options(number)));
    register_module(*joint_.back());
    add_layer(*joint_.back(), unit.name, number, is_first);
  } else {
    const bool is_first = single_.empty();
    single_.push_back(std::make_unique<FluxSingleBlock>(own, unit.name, block_options(number)));
    register_module(*single_.back());
    add_layer(*single_.back(), unit.name, number, is_first);
  }
}

FluxBlockOptions Flux::block_options(int64_t layer) const {
  return {.hidden = config_.hidden_size,
          .ffn = config_.ffn_size(),
          .num_heads = config_.num_attention_heads,
          .layer = layer};
}

void Flux::make_embedding(const LayerContext& context) {
  LayerContext plain = context;
  plain.recipe = nullptr;
  LayerContext whole = plain;  // of vectors, which have no tokens to share
  whole.is_sequence_parallel = false;
  const int64_t h = config_.hidden_size;
  const auto entry = [&](const char* name, int64_t in) {
    return std::make_unique<Linear>(
        plain, name, in, h,
        LinearOptions{.has_bias = true,
                      .weight_init = Init::uniform(std::sqrt(6.0 / static_cast<double>(in + h)))});
  };
  const auto vector = [&](const std::string& name, int64_t in) {
    return std::make_unique<VectorEmbedding>(whole, "time_text_embed." + name, in, h, config_.init_method_std);
  };
  image_in_ = entry("x_embedder", config_.in_channels);
  text_in_ = entry("context_embedder", config_.context_dim);
  time_in_ = vector("timestep_embedder", config_.model_channels);
  if (config_.guidance_embed) guidance_in_ = vector("guidance_embedder", config_.model_channels);
  pooled_in_ = vector("text_embedder", config_.vec_in_dim);
  Block block{.name = "embedding", .modules = {}, .is_layer = false};
  for (Module* module : std::initializer_list<Module*>{image_in_.get(), text_in_.get(), time_in_.get(),
                                                       guidance_in_.get(), pooled_in_.get()}) {
    if (module == nullptr) continue;
    register_module(*module);
    block.modules.push_back(module);
  }
  add_block(std::move(block));
}

void Flux::make_head(const LayerContext& context) {
  LayerContext plain = context;
  plain.recipe = nullptr;
  modulation_out_ = std::make_unique<Modulation>(plain, "norm_out.linear", config_.hidden_size, 2);
  out_ = std::make_unique<Linear>(plain, "proj_out", config_.hidden_size, config_.in_channels,
                                  LinearOptions{.has_bias = true, .weight_init = Init::constant(0)});
  register_module(*modulation_out_);
  register_module(*out_);
  add_block({.name = "head", .modules = {modulation_out_.get(), out_.get()}, .is_layer = false});
}

void Flux::add_layer(const Module& layer, const std::string& name, int64_t number, bool is_first_of_stack) {
  const int64_t per_block = part().layers_per_block;
  MEGALITH_CHECK(per_block > 0, "blocks of {} layers", per_block);
  if (first_layer_ < 0) first_layer_ = number;
  const int64_t place = (number - first_layer_) % per_block;
  // No block has layers of both stacks. One that a new stack cuts short is recomputed as its whole group is.
  if (place == 0 || is_first_of_stack) add_block({.name = name, .modules = {}, .layer = number - place});
  blocks_.back().modules.push_back(&layer);
}

void Flux::add_block(Block block) {
  block.index = std::ssize(blocks_);
  blocks_.push_back(std::move(block));
}

// ---- A pass ----

FluxPass Flux::make_pass(const ModelInput& input) const {
  const int64_t b = input.context.b, n = input.context.s, l = input.context.encoder_s;
  FluxPass pass;
  pass.b = b;
  pass.ranks = ranks_;
  if (joint_.empty() && single_.empty()) return pass;
  const at::Tensor image = find_input(input, "image_positions");
  MEGALITH_CHECK(image.dim() == 2 && image.size(0) == n, "{} positions of {} tokens", image.size(0), n);
  pass.angles =
      flux_angles(at::cat({at::zeros({l, image.size(1)}, image.options()), image}), config_, dtype_);
  // In a single block's order; a row (b, l + n, …) becomes (ranks, b, (l + n) / ranks, …).
  const auto by_rank = [&](const at::Tensor& both) {
    const auto split = [&](int64_t first, int64_t count) {
      return both.narrow(1, first, count).unflatten(1, {ranks_, -1});
    };
    return at::cat({split(0, l), split(l, n)}, 2).transpose(0, 1);
  };
  const auto in_order = [&](const at::Tensor& table) { return by_rank(table).reshape(table.sizes()).contiguous(); };
  pass.single_angles = pass.angles;
  if (ranks_ > 1) pass.single_angles = {.cos = in_order(pass.angles.cos), .sin = in_order(pass.angles.sin)};
  if (const at::Tensor rows = input.context.dropout_rows(); rows.defined()) {
    const at::Tensor sorted = by_rank(rows);
    pass.all_rows = sorted.reshape({-1});
    pass.text_rows = sorted.narrow(2, 0, l / ranks_).reshape({-1});
    pass.image_rows = sorted.narrow(2, l / ranks_, n / ranks_).reshape({-1});
  }
  return pass;
}

ModelOutput Flux::forward(const ModelInput& input, const Bundle& boundary, HeadOutput head) {
  if (input.context.encoder_s < 1) {
    throw UserError("model_type diffusion_model got no picture and no text",
                    "this command or task is for language models; train and generate take model_type diffusion_model");
  }
  check_tokens(input.context);
  State state;
  for (const auto& [name, tensor] : boundary.tensors) {
    if (name == "image") state.image = tensor;
    if (name == "text") state.text = tensor;
    if (name == "hidden") state.hidden = tensor;
    if (name == "vec") state.vec = tensor;
  }
  const FluxPass pass = make_pass(input);
  Blocks block = blocks_.begin();
  if (image_in_) embed(block, input, state);
  if (!joint_.empty()) run_joint(block, pass, state);
  if (!single_.empty()) run_single(block, pass, state);
  if (out_) return head_output(*block, input, state, head);
  Bundle given;
  const auto give = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) given.set(name, tensor);
  };
  give("image", state.image);
  give("text", state.text);
  give("hidden", state.hidden);
  give("vec", state.vec);
  ModelOutput output;
  output.boundary = outgoing_bundle(part().units, part().range, given, boundary);
  return output;
}

at::Tensor Flux::own_tokens(const at::Tensor& all) const {
  if (ranks_ == 1) return all;
  const int64_t count = all.size(1) / ranks_;
  return all.narrow(1, tp_->rank() * count, count);
}

void Flux::check_tokens(const ForwardContext& context) const {
  if (context.s % ranks_ == 0 && context.encoder_s % ranks_ == 0) return;
  throw UserError(fmt::format("sequence_parallel splits the {} tokens of a picture and the {} of its text over {} "
                              "ranks, and they do not divide",
                              context.s, context.encoder_s, ranks_),
                  "set image_size and text_length to what divides, or leave sequence_parallel out");
}

void Flux::embed(Blocks& block, const ModelInput& input, State& state) const {
  const auto tokens = [&](const char* name) {
    const at::Tensor x = cast(own_tokens(find_input(input, name)));
    return x.reshape({-1, x.size(-1)}).contiguous();
  };
  const at::Tensor image = tokens("image"), text = tokens("text");
  const at::Tensor pooled = cast(find_input(input, "pooled")).contiguous();
  const at::Tensor t = find_input(input, "timesteps");
  const at::Tensor guidance = guidance_in_ ? find_input(input, "guidance") : at::Tensor();
  const int64_t b = input.context.b;
  MEGALITH_CHECK(ranks_ * image.size(0) == b * input.context.s &&
                     ranks_ * text.size(0) == b * input.context.encoder_s && t.size(0) == b,
                 "{} tokens of pictures, {} of texts and {} timesteps of {} samples", image.size(0), text.size(0),
                 t.size(0), b);
  const BlockBody body = [=, this](const auto&) -> std::vector<at::Tensor> {
    const auto told = [&](VectorEmbedding& embedding, const at::Tensor& number) {
      return embedding.forward(timestep_embedding(number, config_.model_channels, dtype_));
    };
    at::Tensor vec = told(*time_in_, t);
    if (guidance_in_) vec = vec + told(*guidance_in_, guidance);
    return {image_in_->forward(image), text_in_->forward(text), vec + pooled_in_->forward(pooled)};
  };
  const std::vector<at::Tensor> outputs = run_block(runner(), *block++, {}, body);
  state = {.image = outputs[0], .text = outputs[1], .hidden = {}, .vec = outputs[2]};
}

void Flux::run_joint(Blocks& block, const FluxPass& pass, State& state) const {
  for (auto layer = joint_.begin(); layer != joint_.end(); ++block) {
    std::vector<FluxJointBlock*> layers;
    for (size_t i = 0; i < block->modules.size(); ++i, ++layer) layers.push_back(layer->get());
    // By value: a runner may call it again after this pass.
    const BlockBody body = [layers, pass](const std::vector<at::Tensor>& inputs) {
      FluxJointBlock::Streams streams{.image = inputs[0], .text = inputs[1]};
      for (FluxJointBlock* one : layers) streams = one->forward(streams, inputs[2], pass);
      return std::vector<at::Tensor>{streams.image, streams.text};
    };
    const std::vector<at::Tensor> outputs = run_block(runner(), *block, {state.image, state.text, state.vec}, body);
    state.image = outputs[0];
    state.text = outputs[1];
  }
}

void Flux::run_single(Blocks& block, const FluxPass& pass, State& state) const {
  if (!state.hidden.defined()) state.hidden = joined_streams(state.text, state.image, pass.b);
  state.image = at::Tensor();
  state.text = at::Tensor();
  for (auto layer = single_.begin(); layer != single_.end(); ++block) {
    std::vector<FluxSingleBlock*> layers;
    for (size_t i = 0; i < block->modules.size(); ++i, ++layer) layers.push_back(layer->get());
    const BlockBody body = [layers, pass](const std::vector<at::Tensor>& inputs) {
      at::Tensor x = inputs[0];
      for (FluxSingleBlock* one : layers) x = one->forward(x, inputs[1], pass);
      return std::vector<at::Tensor>{x};
    };
    state.hidden = run_block(runner(), *block, {state.hidden, state.vec}, body)[0];
  }
}

ModelOutput Flux::head_output(const Block& block, const ModelInput& input, const State& state, HeadOutput head) const {
  const int64_t b = input.context.b, n = input.context.s / ranks_;  // of this rank
  const auto wide = ops::wide_dtype(dtype_);
  ModelOutput output;
  const BlockBody body = [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    const at::Tensor hidden = inputs[0].view({b, -1, inputs[0].size(1)});
    const at::Tensor image = hidden.narrow(1, hidden.size(1) - n, n).reshape({b * n, -1}).contiguous();
    const std::vector<at::Tensor> modulation = modulation_out_->forward(inputs[1]);  // scale, shift
    const Activation normed =
        modulated_norm(image, modulation[1], modulation[0], {.epsilon = kFluxEpsilon, .kernels = kernels_});
    const at::Tensor velocity = out_->forward(normed).view({b, n, config_.in_channels});
    if (head != HeadOutput::kLoss) {
      output.logits = whole_tokens(velocity.detach(), ranks_, tp_);
      return {};
    }
    const at::Tensor target = own_tokens(find_input(input, "target")).to(wide);
    const at::Tensor losses = (velocity.to(wide) - target).square().mean({1, 2}) / static_cast<double>(ranks_);
    const at::Tensor sum = losses.sum(), factor = input.scales(0).per_weight;
    // Each rank's backward pass begins with its own tokens' part.
    at::Tensor whole_sum = sum.detach();
    if (ranks_ > 1) {
      whole_sum = whole_sum.clone();
      tp_->all_reduce(whole_sum, ReduceOp::kSum, "mse loss").wait();
    }
    const at::Tensor weight = at::full({}, static_cast<double>(b), losses.options().requires_grad(false));
    const at::Tensor objective = factor.defined() ? sum * factor.to(sum.device(), wide) : sum;
    const at::Tensor timesteps = find_input(input, "timesteps").to(wide).sum();
    output.terms = {{.name = input.terms.at(0).name, .sum = whole_sum, .weight = weight, .objective = objective},
                    {.name = kTimestepTerm, .sum = timesteps, .weight = weight, .objective = {}}};
    return {objective};
  };
  const std::vector<at::Tensor> objectives = run_block(runner(), block, {state.hidden, state.vec}, body);
  if (head == HeadOutput::kLoss) output.terms.front().objective = objectives[0];
  return output;
}

std::vector<TensorSpec> Flux::boundary(const ForwardContext& context) const {
  check_tokens(context);
  std::vector<TensorSpec> tensors;
  for (std::string& name : boundary_before(part().units, part().range.first)) {
    const int64_t rows = name == "vec"     ? 1
                         : name == "text"  ? context.encoder_s
                         : name == "image" ? context.s
                                           : context.s + context.encoder_s;
    const int64_t own = name == "vec" ? 1 : div_exact(rows, ranks_);
    tensors.push_back({std::move(name), {context.b * own, config_.hidden_size}, dtype_});
  }
  return tensors;
}

CostShape Flux::shape_of(const Module& child, const CostShape& shape) const {
  if (&child == text_in_.get()) return {.b = shape.b, .s = shape.encoder_s};
  return shape;
}

std::unique_ptr<Model> build_flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return std::make_unique<Flux>(config, context, part);
}

}  // namespace megalith
