#include "models/flux.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "models/unit_chunk.h"
#include "nn/flux_block.h"
#include "nn/timestep_embedding.h"
#include "ops/arguments.h"

namespace megalith {

namespace {

// Joins text and picture by sample: (b l, h), (b n, h) -> (b (l + n), h).
at::Tensor joined_streams(const at::Tensor& text, const at::Tensor& image, int64_t b) {
  const auto by_sample = [b](const at::Tensor& x) { return x.view({b, -1, x.size(1)}); };
  return at::cat({by_sample(text), by_sample(image)}, 1).view({-1, text.size(1)});
}

// (b, n / ranks, c) of each rank -> (b, n, c).
at::Tensor whole_tokens(const at::Tensor& own, int64_t ranks, Group& tp) {
  if (ranks == 1) return own;
  const int64_t b = own.size(0), c = own.size(2);
  const at::Tensor all = tp.gathered(own.contiguous(), "velocity");
  return all.view({ranks, b, -1, c}).transpose(0, 1).reshape({b, -1, c}).contiguous();
}

at::Tensor find_input(const ModelInput& input, const InputSpec& spec) {
  const at::Tensor* tensor = input.more.find(spec.name);
  if (tensor != nullptr) return *tensor;
  throw UserError(fmt::format("model_type diffusion_model got no {}", spec.name),
                  "this command or task is for language models; train and generate take model_type diffusion_model");
}

// This rank's part of an input that tokens split.
at::Tensor own_input(const ModelInput& input, const InputSpec& spec, int64_t ranks, const Group& tp) {
  const at::Tensor all = find_input(input, spec);
  if (!spec.is_split || ranks == 1) return all;
  const int64_t count = all.size(1) / ranks;
  return as_cut(all.narrow(1, tp.rank() * count, count), tp);
}

}  // namespace

std::vector<InputSpec> flux_inputs(const ModelConfig& config, bool has_target) {
  using namespace input;
  std::vector<InputSpec> inputs = {kImage, kText, kPooledText, kTimesteps, kImagePositions};
  if (config.guidance_embed) inputs.push_back(kGuidance);
  if (has_target) inputs.push_back(kTarget);
  return inputs;
}

std::vector<Unit> flux_units(const ModelConfig& config) {
  const std::vector<std::string> streams = {"image", "text"}, all = {"image", "text", "vec"};
  std::vector<Unit> units;
  units.push_back({.kind = kFluxEmbeddingUnit, .name = "x_embedder", .letter = UnitLetter::kEmbedding, .gives = all});
  for (int64_t layer = 0; layer < config.num_joint_layers; ++layer) {
    units.push_back(layer_unit(kFluxJointUnit, "transformer_blocks", layer, all, streams));
  }
  const std::vector<std::string> joined = {"hidden", "vec"};
  for (int64_t layer = 0; layer < config.num_single_layers; ++layer) {
    units.push_back(
        layer_unit(kFluxSingleUnit, "single_transformer_blocks", layer, layer == 0 ? all : joined, {"hidden"}));
  }
  units.push_back({.kind = kFluxHeadUnit, .name = "proj_out", .letter = UnitLetter::kHead, .reads = joined});
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

namespace {

struct FluxUnitPass : UnitPass {
  FluxPass flux;
};

const FluxPass& flux_of(const UnitPass& pass) { return pass.as<FluxUnitPass>().flux; }

void make_flux_embedding(UnitModule& unit, const ModelConfig& config, const LayerContext& context) {
  LayerContext whole = context;  // for vectors, which have no tokens to split
  whole.is_sequence_parallel = false;
  const int64_t h = config.hidden_size;
  const auto entry = [&](const char* name, int64_t in) -> Linear& {
    const auto init = Init::uniform(std::sqrt(6.0 / static_cast<double>(in + h)));
    return unit.add<Linear>(context, name, in, h, LinearOptions{.has_bias = true, .weight_init = init});
  };
  const auto vector = [&](const std::string& name, int64_t in) -> VectorEmbedding& {
    return unit.add<VectorEmbedding>(whole, "time_text_embed." + name, in, h, config.init_method_std);
  };
  Linear& image = entry("x_embedder", config.in_channels);
  Linear& text = entry("context_embedder", config.context_dim);
  VectorEmbedding& time = vector("timestep_embedder", config.model_channels);
  VectorEmbedding* guidance = config.guidance_embed ? &vector("guidance_embedder", config.model_channels) : nullptr;
  VectorEmbedding& pooled = vector("text_embedder", config.vec_in_dim);
  unit.cost_shape = [&text](const Module& part, const CostShape& shape) {
    return &part == &text ? CostShape{.b = shape.b, .s = shape.encoder_s} : shape;
  };
  unit.forward = [&image, &text, &time, guidance, &pooled, channels = config.model_channels, dtype = context.dtype,
                  &tp = *context.groups->tp](const Streams& /*in*/, const UnitPass& unit_pass) -> Streams {
    const FluxPass& pass = flux_of(unit_pass);
    const ModelInput& input = *unit_pass.input;
    const auto tokens = [&](const InputSpec& spec) {
      const at::Tensor x = own_input(input, spec, pass.ranks, tp).to(dtype);
      return x.reshape({-1, x.size(-1)}).contiguous();
    };
    const at::Tensor x = tokens(input::kImage), y = tokens(input::kText);
    const at::Tensor t = find_input(input, input::kTimesteps);
    MEGALITH_CHECK(pass.ranks * x.size(0) == pass.b * input.context.s &&
                       pass.ranks * y.size(0) == pass.b * input.context.encoder_s && t.size(0) == pass.b,
                   "{} tokens of pictures, {} of texts and {} timesteps of {} samples", x.size(0), y.size(0), t.size(0),
                   pass.b);
    const auto told = [&](VectorEmbedding& embedding, const at::Tensor& number) {
      return embedding.forward(timestep_embedding(number, channels, dtype));
    };
    at::Tensor vec = told(time, t);
    if (guidance != nullptr) vec = vec + told(*guidance, find_input(input, input::kGuidance));
    const at::Tensor caption = find_input(input, input::kPooledText).to(dtype).contiguous();
    return {{image.forward(x), {}}, {text.forward(y), {}}, {vec + pooled.forward(caption), {}}};
  };
}

void make_flux_block(UnitModule& module, const Unit& unit, const LayerContext& context,
                     const FluxBlockOptions& options) {
  if (unit.kind == kFluxJointUnit) {
    auto& block = module.add<FluxJointBlock>(context, unit.name, options);
    module.forward = [&block](const Streams& in, const UnitPass& pass) -> Streams {
      const auto out = block.forward({.image = in[0].delta, .text = in[1].delta}, in[2].delta, flux_of(pass));
      return {{out.image, {}}, {out.text, {}}};
    };
    return;
  }
  auto& block = module.add<FluxSingleBlock>(context, unit.name, options);
  module.forward = [&block](const Streams& in, const UnitPass& unit_pass) -> Streams {
    const FluxPass& pass = flux_of(unit_pass);
    const at::Tensor joined = in.size() == 3 ? joined_streams(in[1].delta, in[0].delta, pass.b) : in[0].delta;
    return {{block.forward(joined, in.back().delta, pass), {}}};
  };
}

// Loss and timestep terms of velocities (b, n / ranks, c).
std::vector<LossTerm> flux_terms(const ModelInput& input, const FluxPass& pass, const at::Tensor& velocity, Group& tp) {
  const auto wide = ops::wide_dtype(velocity.scalar_type());
  const at::Tensor target = own_input(input, input::kTarget, pass.ranks, tp).to(wide);
  const at::Tensor losses = (velocity.to(wide) - target).square().mean({1, 2}) / static_cast<double>(pass.ranks);
  const at::Tensor factor = input.scales(0).per_weight;
  // Each rank's backward starts from its own tokens' part.
  const at::Tensor sum = pass.ranks > 1 ? as_summand(losses.sum(), tp) : losses.sum();
  at::Tensor whole_sum = sum.detach();
  if (pass.ranks > 1) {
    whole_sum = whole_sum.clone();
    tp.all_reduce(whole_sum, ReduceOp::kSum, "mse loss").wait();
  }
  const at::Tensor weight = at::full({}, static_cast<double>(pass.b), losses.options().requires_grad(false));
  const at::Tensor objective = factor.defined() ? sum * factor.to(sum.device(), wide) : sum;
  const at::Tensor timesteps = find_input(input, input::kTimesteps).to(wide).sum();
  return {{.name = input.terms.at(0).name, .sum = whole_sum, .weight = weight, .objective = objective},
          {.name = kTimestepTerm, .sum = timesteps, .weight = weight, .objective = {}}};
}

void make_flux_head(UnitModule& unit, const ModelConfig& config, const LayerContext& context) {
  auto& modulation = unit.add<Modulation>(context, "norm_out.linear", config.hidden_size, 2);
  auto& out = unit.add<Linear>(context, "proj_out", config.hidden_size, config.in_channels,
                               LinearOptions{.has_bias = true, .weight_init = Init::constant(0)});
  unit.forward = [&modulation, &out, kernels = context.kernels, &tp = *context.groups->tp](
                     const Streams& in, const UnitPass& unit_pass) -> Streams {
    const FluxPass& pass = flux_of(unit_pass);
    const int64_t b = pass.b, n = unit_pass.context.s / pass.ranks;  // this rank's
    const at::Tensor hidden = in[0].delta.view({b, -1, in[0].delta.size(1)});
    const at::Tensor image = hidden.narrow(1, hidden.size(1) - n, n).reshape({b * n, -1}).contiguous();
    const std::vector<at::Tensor> change = modulation.forward(in[1].delta);
    const Activation normed =
        modulated_norm(image, change[1], change[0], {.epsilon = kFluxEpsilon, .kernels = kernels});
    const at::Tensor velocity = out.forward(normed).view({b, n, -1});
    if (unit_pass.head == HeadOutput::kLoss) {
      unit_pass.output->terms = flux_terms(*unit_pass.input, pass, velocity, tp);
    } else {
      unit_pass.output->logits = whole_tokens(velocity.detach(), pass.ranks, tp);
    }
    return {};
  };
}

std::vector<UserError> check_flux_ranks(const LayerContext& context) {
  const int cp = context.groups->cp->size();
  if (cp == 1) return {};
  return {UserError(fmt::format("context_parallel_size {} with model_type diffusion_model, whose text and picture are "
                                "one sequence that no such ranks share",
                                cp),
                    "leave it out: tensor, sequence, pipeline and data parallelism take model_type diffusion_model")};
}

class Flux : public UnitChunk {
 public:
  Flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part)
      : UnitChunk(config, context, part, /*is_text=*/false, check_flux_ranks(context)) {
    make_units(context);
  }

 protected:
  void make_unit(const Unit& unit, const LayerContext& context, int64_t layer) override {
    LayerContext plain = context;
    plain.recipe = nullptr;
    if (unit.kind == kFluxEmbeddingUnit) return make_flux_embedding(add_block(unit, "embedding"), config(), plain);
    if (unit.kind == kFluxHeadUnit) return make_flux_head(add_block(unit, "head"), config(), plain);
    MEGALITH_CHECK(unit.kind == kFluxJointUnit || unit.kind == kFluxSingleUnit, "FLUX has no unit of kind {}",
                   unit.kind);
    make_flux_block(add_layer(unit), unit, layer_context(context, layer, config().num_all_layers()),
                    {.hidden = config().hidden_size,
                     .ffn = config().ffn_size(),
                     .num_heads = config().num_attention_heads,
                     .layer = layer});
  }

  int64_t num_rows(const std::string& tensor, const ForwardContext& context) const override {
    check_tokens(context);
    if (tensor == "vec") return context.b;
    const int64_t text = tensor == "image" ? 0 : context.encoder_s, image = tensor == "text" ? 0 : context.s;
    return context.b * div_exact(text + image, token_split());
  }

  std::shared_ptr<UnitPass> make_pass(const ModelInput& input, const ForwardContext& context) const override {
    if (input.context.encoder_s < 1) {
      throw UserError(
          "model_type diffusion_model got no picture and no text",
          "this command or task is for language models; train and generate take model_type diffusion_model");
    }
    check_tokens(input.context);
    const int64_t b = input.context.b, n = input.context.s, l = input.context.encoder_s;
    const auto made = std::make_shared<FluxUnitPass>();
    made->context = context;
    FluxPass& pass = made->flux;
    pass.b = b;
    pass.ranks = token_split();
    if (count_units(part().own_units(), UnitLetter::kLayer) == 0) return made;
    const at::Tensor image = find_input(input, input::kImagePositions);
    MEGALITH_CHECK(image.dim() == 2 && image.size(0) == n, "{} positions of {} tokens", image.size(0), n);
    pass.angles = flux_angles(at::cat({at::zeros({l, image.size(1)}, image.options()), image}), config(), dtype());
    // Order of a single block: (b, l + n, …) becomes (ranks, b, (l + n) / ranks, …).
    const auto by_rank = [&](const at::Tensor& both) {
      const auto split = [&](int64_t first, int64_t count) {
        return both.narrow(1, first, count).unflatten(1, {token_split(), -1});
      };
      return at::cat({split(0, l), split(l, n)}, 2).transpose(0, 1);
    };
    const auto in_order = [&](const at::Tensor& table) { return by_rank(table).reshape(table.sizes()).contiguous(); };
    pass.single_angles = pass.angles;
    if (token_split() > 1) pass.single_angles = {.cos = in_order(pass.angles.cos), .sin = in_order(pass.angles.sin)};
    if (const at::Tensor rows = input.context.dropout_rows(); rows.defined()) {
      const at::Tensor sorted = by_rank(rows);
      pass.all_rows = sorted.reshape({-1});
      pass.text_rows = sorted.narrow(2, 0, l / token_split()).reshape({-1});
      pass.image_rows = sorted.narrow(2, l / token_split(), n / token_split()).reshape({-1});
    }
    return made;
  }

  void check_tokens(const ForwardContext& context) const {
    if (context.s % token_split() == 0 && context.encoder_s % token_split() == 0) return;
    throw UserError(fmt::format("sequence_parallel splits the {} tokens of a picture and the {} of its text over {} "
                                "ranks, and they do not divide",
                                context.s, context.encoder_s, token_split()),
                    "set image_size and text_length to what divides, or leave sequence_parallel out");
  }
};

}  // namespace

std::unique_ptr<Model> build_flux(const ModelConfig& config, const LayerContext& context, const ModelPart& part) {
  return std::make_unique<Flux>(config, context, part);
}

}  // namespace megalith
