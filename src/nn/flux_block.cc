#include "nn/flux_block.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"

namespace megalith {

namespace {

constexpr ops::ExpertActivation kFluxActivation{.kind = ops::ActivationKind::kGeluTanh, .is_gated = false};

Init xavier_uniform(int64_t in, int64_t out) { return Init::uniform(std::sqrt(6.0 / static_cast<double>(in + out))); }

ModulatedNorm norm_form(const LayerContext& context) {
  return {.epsilon = kFluxEpsilon, .kernels = context.kernels, .is_recomputed = context.recompute.norms};
}

LinearOptions column(int64_t in, int64_t out, LinearKind kind) {
  return {.role = LinearRole::kColumn, .has_bias = true, .kind = kind, .weight_init = xavier_uniform(in, out)};
}

LinearOptions row(int64_t in, int64_t out, LinearKind kind) {
  return {.role = LinearRole::kRow, .has_bias = true, .kind = kind, .weight_init = xavier_uniform(in, out)};
}

// (b, S, w) -> (b count, w), sorted by rank.
Activation tokens_of(const Activation& whole, int64_t first, int64_t count, int64_t ranks) {
  const auto cut = [=](const at::Tensor& all) {
    const int64_t b = all.size(0), w = all.size(2);
    const at::Tensor some = all.narrow(1, first, count);
    if (ranks == 1) return some.reshape({-1, w}).contiguous();
    return some.reshape({b, ranks, count / ranks, w}).transpose(0, 1).reshape({-1, w}).contiguous();
  };
  if (!whole.kept.is_defined()) return cut(whole.value);
  return {cut(whole.value), whole.kept.then(cut)};
}

}  // namespace

FluxJointBlock::Stream::Stream(const LayerContext& context, const std::string& block, const Names& names,
                               const FluxBlockOptions& options)
    : modulation(context, block + "." + names.norm, options.hidden, 6),
      qkv(context, block + ".attn." + names.q + "kv", options.hidden,
          {{block + ".attn." + names.q, options.hidden},
           {block + ".attn." + names.k, options.hidden},
           {block + ".attn." + names.v, options.hidden}},
          column(options.hidden, 3 * options.hidden, LinearKind::kQkv)),
      norms(context, block + ".attn." + names.q_norm, block + ".attn." + names.k_norm, options.head_dim(),
            heads_of_rank(options.num_heads, context, "num_attention_heads"), kFluxEpsilon),
      output(context, block + ".attn." + names.output, options.hidden, options.hidden,
             row(options.hidden, options.hidden, LinearKind::kAttentionOutput)),
      up(context, block + "." + names.mlp + ".net.0.proj", options.hidden, options.ffn,
         column(options.hidden, options.ffn, LinearKind::kMlpUp)),
      down(context, block + "." + names.mlp + ".net.2", options.ffn, options.hidden,
           row(options.ffn, options.hidden, LinearKind::kMlpDown)) {
  for (Module* module : std::initializer_list<Module*>{&modulation, &qkv, &norms, &output, &up, &down}) {
    register_module(*module);
  }
}

FluxJointBlock::FluxJointBlock(const LayerContext& context, const std::string& name, const FluxBlockOptions& options)
    : policy_(context.recompute),
      norm_(norm_form(context)),
      kernels_(context.kernels),
      image_(context, name,
             {.norm = "norm1.linear",
              .q = "to_q",
              .k = "to_k",
              .v = "to_v",
              .q_norm = "norm_q",
              .k_norm = "norm_k",
              .output = "to_out.0",
              .mlp = "ff"},
             options),
      text_(context, name,
            {.norm = "norm1_context.linear",
             .q = "add_q_proj",
             .k = "add_k_proj",
             .v = "add_v_proj",
             .q_norm = "norm_added_q",
             .k_norm = "norm_added_k",
             .output = "to_add_out",
             .mlp = "ff_context"},
            options),
      attention_(context, name + ".attn", options.num_heads, options.head_dim(), options.layer) {
  register_module(image_);
  register_module(text_);
  register_module(attention_);
}

FluxJointBlock::Streams FluxJointBlock::forward(const Streams& in, const at::Tensor& vec, const FluxPass& pass) {
  // shift, scale, gate of attention, then of the MLP
  const std::vector<at::Tensor> of_image = image_.modulation.forward(vec), of_text = text_.modulation.forward(vec);
  const auto project = [&](Stream& stream, const at::Tensor& x, const std::vector<at::Tensor>& modulation,
                           const at::Tensor& rows) {
    return stream.qkv.forward(modulated_norm(x, modulation[0], modulation[1], norm_), rows);
  };
  const at::Tensor text_qkv = project(text_, in.text, of_text, pass.text_rows);
  const at::Tensor image_qkv = project(image_, in.image, of_image, pass.image_rows);
  const Activation attended =
      attention_.forward({{text_qkv, &text_.norms}, {image_qkv, &image_.norms}}, pass.b, pass.ranks, pass.angles);
  const int64_t l = in.text.size(0) / pass.b * pass.ranks, n = in.image.size(0) / pass.b * pass.ranks;
  Streams out;
  out.image = finish(image_, in.image, tokens_of(attended, l, n, pass.ranks), of_image, pass.image_rows);
  out.text = finish(text_, in.text, tokens_of(attended, 0, l, pass.ranks), of_text, pass.text_rows);
  return out;
}

at::Tensor FluxJointBlock::finish(Stream& stream, const at::Tensor& x, const Activation& attended,
                                  const std::vector<at::Tensor>& modulation, const at::Tensor& rows) const {
  const at::Tensor sum = gated_sum(x, modulation[2], stream.output.forward(attended, rows));
  const Activation normed = modulated_norm(sum, modulation[3], modulation[4], norm_);
  Activation up = stream.up.forward(normed, rows);
  if (policy_.mlp) up.kept = stream.up.again(normed.keep(), rows);
  const Activation inner = activated(up, kFluxActivation, kernels_, policy_.mlp || policy_.mlp_activation);
  return gated_sum(sum, modulation[5], stream.down.forward(inner, rows));
}

CostShape FluxJointBlock::shape_of(const Module& child, const CostShape& shape) const {
  if (&child == &image_) return {.b = shape.b, .s = shape.s};
  if (&child == &text_) return {.b = shape.b, .s = shape.encoder_s};
  return shape;
}

FluxSingleBlock::FluxSingleBlock(const LayerContext& context, const std::string& name, const FluxBlockOptions& options)
    : attention_width_(options.hidden / context.groups->tp->size()),
      policy_(context.recompute),
      norm_(norm_form(context)),
      kernels_(context.kernels),
      modulation_(context, name + ".norm.linear", options.hidden, 3),
      in_(context, name + ".attn.to_qkv_proj_mlp", options.hidden,
          {{name + ".attn.to_q", options.hidden},
           {name + ".attn.to_k", options.hidden},
           {name + ".attn.to_v", options.hidden},
           {name + ".proj_mlp", options.ffn}},
          column(options.hidden, 3 * options.hidden + options.ffn, LinearKind::kQkv)),
      norms_(context, name + ".attn.norm_q", name + ".attn.norm_k", options.head_dim(),
             heads_of_rank(options.num_heads, context, "num_attention_heads"), kFluxEpsilon),
      attention_(context, name + ".attn", options.num_heads, options.head_dim(), options.layer),
      out_(context, name + ".proj_out", options.hidden + options.ffn, options.hidden,
           {.role = LinearRole::kRow,
            .has_bias = true,
            .kind = LinearKind::kAttentionOutput,
            .weight_init = xavier_uniform(options.hidden + options.ffn, options.hidden),
            .input_parts = {options.hidden, options.ffn}}) {
  for (Module* module : std::initializer_list<Module*>{&modulation_, &in_, &norms_, &attention_, &out_}) {
    register_module(*module);
  }
}

at::Tensor FluxSingleBlock::forward(const at::Tensor& x, const at::Tensor& vec, const FluxPass& pass) {
  const std::vector<at::Tensor> modulation = modulation_.forward(vec);
  const Activation normed = modulated_norm(x, modulation[0], modulation[1], norm_);
  const at::Tensor inner = in_.forward(normed, pass.all_rows);
  const int64_t qkv_width = 3 * attention_width_, up_width = inner.size(1) - qkv_width;
  const Activation attended =
      tokens_of(attention_.forward({{inner.narrow(1, 0, qkv_width), &norms_}}, pass.b, pass.ranks, pass.single_angles),
                0, inner.size(0) / pass.b, pass.ranks);
  Activation up = inner.narrow(1, qkv_width, up_width).contiguous();
  if (policy_.mlp) {
    up.kept = in_.again(normed.keep(), pass.all_rows).then([qkv_width, up_width](const at::Tensor& again) {
      return again.narrow(1, qkv_width, up_width).contiguous();
    });
  }
  const Activation mlp = activated(up, kFluxActivation, kernels_, policy_.mlp || policy_.mlp_activation);
  Activation both = at::cat({attended.value, mlp.value}, 1);
  if (attended.kept.is_defined() || mlp.kept.is_defined()) {
    both.kept = Kept::computed([a = attended.keep(), m = mlp.keep()] { return at::cat({a.get(), m.get()}, 1); });
  }
  return gated_sum(x, modulation[2], out_.forward(both, pass.all_rows));
}

CostShape FluxSingleBlock::shape_of(const Module& child, const CostShape& shape) const {
  return &child == &attention_ ? shape : CostShape{.b = shape.b, .s = shape.s + shape.encoder_s};
}

}  // namespace megalith
