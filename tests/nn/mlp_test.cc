// The MLP in all its forms: against ATen's operators, over tensor-parallel ranks, computed again, and what it costs.
#include "nn/mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/kept_bytes.h"
#include "support/layer_options.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;
using ops::ActivationKind;

constexpr int64_t kMlpHidden = 6, kMlpFfn = 10, kMlpTokens = 8;

struct MlpForm {
  std::string name;
  ops::ExpertActivation activation;
  LayerOptions options;
  MlpSite site = {};
};

LayerOptions mlp_options(ActivationKind activation, bool has_bias) {
  LayerOptions options = plain_layer_options(kMlpHidden);
  options.ffn_hidden_size = kMlpFfn;
  options.swiglu = activation == ActivationKind::kSilu;
  options.squared_relu = activation == ActivationKind::kSquaredRelu;
  options.relu = activation == ActivationKind::kRelu;
  options.quick_geglu = activation == ActivationKind::kQuickGelu;
  // Two ways to say the same: the second needs biases.
  options.openai_gelu = activation == ActivationKind::kGeluTanh && !has_bias;
  options.bias_gelu_fusion = activation == ActivationKind::kGeluTanh;
  options.add_bias_linear = has_bias;
  return options;
}

// Every activation, without biases under Llama's names, and with biases in GPT-2's files.
std::vector<MlpForm> every_mlp_form() {
  std::vector<MlpForm> forms;
  const auto add = [&](const std::string& name, ActivationKind activation, bool is_gated) {
    MlpForm form{name, {activation, is_gated}, mlp_options(activation, /*has_bias=*/false)};
    if (is_gated != form.options.is_gated()) form.site.activation = form.activation;
    forms.push_back(form);
    form.name += ", transposed, with biases";
    form.options = mlp_options(activation, /*has_bias=*/true);
    form.site.is_transposed = true;
    form.site.names = {.gate = "c_gate", .up = "c_fc", .down = "c_proj"};
    forms.push_back(form);
  };
  add("swiglu", ActivationKind::kSilu, true);
  add("geglu", ActivationKind::kGelu, true);
  add("geglu by a tanh", ActivationKind::kGeluTanh, true);
  add("gelu", ActivationKind::kGelu, false);
  add("gelu by a tanh", ActivationKind::kGeluTanh, false);
  add("squared relu", ActivationKind::kSquaredRelu, false);
  add("relu", ActivationKind::kRelu, false);
  add("quick geglu", ActivationKind::kQuickGelu, true);
  return forms;
}

at::Tensor naive_mlp(const MlpForm& form, const TensorMap& weights, const at::Tensor& x) {
  const auto linear = [&](const std::string& name, const at::Tensor& in) {
    const at::Tensor weight = weights.at("mlp." + name + ".weight");
    const at::Tensor y = in.mm(form.site.is_transposed ? weight : weight.t());
    return form.options.has_linear_bias() ? y + weights.at("mlp." + name + ".bias") : y;
  };
  const auto activation = [&](const at::Tensor& v) {
    switch (form.activation.kind) {
      case ActivationKind::kSilu:
        return at::silu(v);
      case ActivationKind::kGelu:
        return at::gelu(v, "none");
      case ActivationKind::kGeluTanh:
        return at::gelu(v, "tanh");
      case ActivationKind::kQuickGelu:
        return v / (1 + at::exp(-1.702 * v));
      case ActivationKind::kRelu:
        return at::relu(v);
      case ActivationKind::kSquaredRelu:
        break;
    }
    return at::relu(v).square();
  };
  const at::Tensor up = linear(form.site.names.up, x);
  const at::Tensor product =
      form.activation.is_gated ? activation(linear(form.site.names.gate, x)) * up : activation(up);
  return linear(form.site.names.down, product);
}

auto make_mlp(const MlpForm& form) {
  return [form](const LayerContext& context) { return std::make_unique<Mlp>(context, "mlp", form.options, form.site); };
}

at::Tensor run_mlp(Mlp& mlp, const at::Tensor& x) { return mlp.forward(x, {}); }

struct MlpCase {
  at::Tensor x = at::randn({kMlpTokens, kMlpHidden}, at::kDouble) * 3;
  at::Tensor dy = at::randn({kMlpTokens, kMlpHidden}, at::kDouble);
  TensorMap weights;
  explicit MlpCase(const MlpForm& form) {
    const Groups groups = Groups::single();
    weights = golden_weights(*make_mlp(form)(double_context(groups)), at::kDouble);
  }
};

TEST(Mlp, EveryFormIsThatOfATen) {
  for (const MlpForm& form : every_mlp_form()) {
    const std::string& name = form.name;
    const MlpCase c(form);
    const auto naive = [&](const TensorMap& weights, const at::Tensor& x) { return naive_mlp(form, weights, x); };
    const LayerPass expected = differentiate(naive, c.weights, c.x, c.dy);
    const Groups groups = Groups::single();
    for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
      LayerContext context = double_context(groups);
      context.kernels = kernels;
      expect_near(run_layer(context, make_mlp(form), run_mlp, c.weights, c.x, c.dy), expected, 1e-13, name);
    }
    for (const bool is_sequence_parallel : {false, true}) {
      expect_near(run_layer_on_ranks(2, is_sequence_parallel, make_mlp(form), run_mlp, c.weights, c.x, c.dy), expected,
                  1e-13, name + (is_sequence_parallel ? ", tp 2 and sequence parallelism" : ", tp 2"));
    }
  }
}

TEST(Mlp, ComputedAgainItGivesTheSameBits) {
  for (const MlpForm& form : every_mlp_form()) {
    const std::string& name = form.name;
    const MlpCase c(form);
    const Groups groups = Groups::single();
    const LayerPass expected = run_layer(double_context(groups), make_mlp(form), run_mlp, c.weights, c.x, c.dy);
    for (const SelectiveRecompute& recompute : {SelectiveRecompute{.mlp = true},
                                                {.mlp_activation = true},
                                                {.mlp = true, .mlp_activation = true},
                                                SelectiveRecompute{}}) {
      LayerContext context = double_context(groups);
      context.recompute = recompute;
      int num_computed = 0;
      const auto run_with_input_again = [&](Mlp& layer, const at::Tensor& x) {
        return layer.forward({x, Kept::computed([&num_computed, kept = x.detach()] {
                                ++num_computed;
                                return kept.clone();
                              })},
                             {});
      };
      const LayerPass kept = run_layer(context, make_mlp(form), run_mlp, c.weights, c.x, c.dy);
      const LayerPass computed = run_layer(context, make_mlp(form), run_with_input_again, c.weights, c.x, c.dy);
      EXPECT_EQ(num_computed, 1) << name;
      for (const LayerPass& pass : {kept, computed}) {
        EXPECT_TRUE(at::equal(pass.y, expected.y)) << name;
        EXPECT_TRUE(at::equal(pass.dx, expected.dx)) << name;
        for (const auto& [tensor, gradient] : expected.gradients) {
          EXPECT_TRUE(at::equal(pass.gradients.at(tensor), gradient)) << name << ": " << tensor;
        }
      }
    }
  }
}

// An element is 2 bytes: t = 8 tokens, h = 6, f = 10.
TEST(Mlp, KeepsAndComputesWhatItSays) {
  const Groups groups = Groups::single();
  struct Expected {
    SelectiveRecompute recompute;
    int64_t plain_bytes, gated_bytes;
  };
  const int64_t x = 2 * 8 * 6, f = 2 * 8 * 10;
  for (const Expected& expected :
       {Expected{{}, x + 2 * f, x + 3 * f}, {{.mlp_activation = true}, x + f, x + 2 * f}, {{.mlp = true}, x, x}}) {
    const LayerContext context{
        .groups = &groups, .dtype = at::kBFloat16, .device = at::kMeta, .recompute = expected.recompute};
    for (const MlpForm& form : every_mlp_form()) {
      Mlp mlp(context, "mlp", form.options, form.site);
      const int64_t kept = kept_bytes({8, 6}, at::kBFloat16, [&](const at::Tensor& in) { return mlp.forward(in, {}); });
      EXPECT_EQ(kept, form.activation.is_gated ? expected.gated_bytes : expected.plain_bytes) << form.name;
      EXPECT_EQ(mlp.forward_flops({.b = 2, .s = 4}), 2.0 * 8 * 6 * 10 * (form.activation.is_gated ? 3 : 2))
          << form.name;
    }
  }
}

TEST(Mlp, GatedTensorsAreTheirOwnAndPlainOnesHaveNoGate) {
  const Groups groups = Groups::single();
  const auto names_of = [&](const MlpForm& form) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_of(Mlp(double_context(groups), "layer.mlp", form.options, form.site)))
      names.push_back(name);
    return names;
  };
  const std::vector<MlpForm> forms = every_mlp_form();
  EXPECT_EQ(names_of(forms[0]), (std::vector<std::string>{"layer.mlp.down_proj.weight", "layer.mlp.gate_proj.weight",
                                                          "layer.mlp.up_proj.weight"}));
  const MlpForm& gpt2 = forms[9];
  ASSERT_EQ(gpt2.name, "gelu by a tanh, transposed, with biases");
  EXPECT_EQ(names_of(gpt2), (std::vector<std::string>{"layer.mlp.c_fc.bias", "layer.mlp.c_fc.weight",
                                                      "layer.mlp.c_proj.bias", "layer.mlp.c_proj.weight"}));
  EXPECT_EQ(values_of(Mlp(double_context(groups), "m", gpt2.options, gpt2.site)).at("m.c_fc.weight").sizes(),
            (at::IntArrayRef{6, 10}));
}

TEST(Mlp, ASharedExpertHasAWidthOfItsOwn) {
  const Groups groups = Groups::single();
  const Mlp mlp(double_context(groups), "m", mlp_options(ActivationKind::kSilu, false), {.ffn = 4});
  EXPECT_EQ(values_of(mlp).at("m.down_proj.weight").sizes(), (at::IntArrayRef{6, 4}));
}

TEST(Mlp, FormsThatDoNotExistAreRefused) {
  const Groups groups = Groups::single();
  LayerOptions options = mlp_options(ActivationKind::kSilu, false);
  EXPECT_THROW(Mlp(double_context(groups), "mlp", options, {.activation = {{ActivationKind::kSilu, false}}}),
               InternalError);
  EXPECT_THROW(Mlp(double_context(groups), "mlp", options, {.activation = {{ActivationKind::kSquaredRelu, true}}}),
               InternalError);
  options.squared_relu = true;
  EXPECT_THROW(Mlp(double_context(groups), "mlp", options, {}), UserError);
}

}  // namespace
}  // namespace megalith
