// The operators of src/ops with inputs of a model's sizes. A test compares their names with the headers there. Letters:
// t tokens, h hidden, f ffn, v vocabulary, b samples, s tokens each, n query heads, g KV heads, d channels.
#include <algorithm>

#include "bench/cases.h"
#include "ops/activation/activation.h"
#include "ops/adamw/adamw.h"
#include "ops/dropout/dropout.h"
#include "ops/expert_activation/expert_activation.h"
#include "ops/fp8_cast/fp8_cast.h"
#include "ops/grad_norm/grad_norm.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/jitter/jitter.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/merge_attention/merge_attention.h"
#include "ops/nf4/nf4.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rotary/rotary.h"
#include "ops/router/router.h"
#include "ops/sinkhorn/sinkhorn.h"
#include "ops/swiglu/swiglu.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith {
namespace {

constexpr double kEps = 1e-5;
constexpr double kWeightStd = 0.02;
constexpr int64_t kHeadRows = 1024;  // logit rows that the head holds at a time
constexpr double kWide = 4;          // bytes of fp32
constexpr double kId = 8;            // bytes of an id
constexpr int64_t kExperts = 8, kExpertsOfToken = 2;

using MakeInputs = std::function<BenchInputs()>;
using RunOperator = std::function<void(const BenchInputs&, Kernels)>;

double elements(std::initializer_list<int64_t> shape) {
  double product = 1;
  for (const int64_t side : shape) product *= static_cast<double>(side);
  return product;
}

class OperatorCases {
 public:
  OperatorCases(const OperatorShape& shape, const BenchTensors& tensors)
      : b_(shape.b),
        s_(shape.s),
        t_(shape.b * shape.s),
        h_(shape.h),
        f_(shape.f),
        v_(shape.v),
        n_(shape.n),
        g_(shape.g),
        d_(shape.d),
        element_(static_cast<double>(tensors.element_bytes())),
        x_(tensors) {}

  void add_norms();
  void add_layer_norms();
  void add_rotary();
  void add_swiglu();
  void add_activation();
  void add_linear();
  void add_fp8_cast();
  void add_nf4();
  void add_merge_attention();
  void add_experts();
  void add_router();
  void add_token_permutation();
  void add_embedding();
  void add_linear_cross_entropy();
  void add_parallel_cross_entropy();
  void add_dropout();
  void add_optimizer();

  std::vector<BenchCase> cases;

 private:
  void add(std::string name, std::string pass, std::initializer_list<int64_t> shape, double flops, double bytes,
           MakeInputs make_inputs, RunOperator run) {
    std::string text;
    for (const int64_t side : shape) text += (text.empty() ? "" : "x") + std::to_string(side);
    cases.push_back({std::move(name), std::move(text), std::move(pass), flops, bytes, std::move(make_inputs),
                     both_kernels(std::move(run))});
  }
  // Elements of one layer's matrices, as in an optimizer's list.
  std::vector<int64_t> layer_matrices() const { return {(n_ + 2 * g_) * d_ * h_, h_ * n_ * d_, 2 * f_ * h_, h_ * f_}; }

  int64_t b_, s_, t_, h_, f_, v_, n_, g_, d_;
  double element_;  // bytes
  const BenchTensors& x_;
};

void OperatorCases::add_norms() {
  const int64_t t = t_, h = h_;
  const double plane = elements({t, h}) * element_, row = element_ * static_cast<double>(h);
  const double statistics = kWide * static_cast<double>(t), dweight = kWide * static_cast<double>(h);
  const BenchTensors& x = x_;
  add(
      "rms_norm", "forward", {t, h}, 0, 2 * plane + row + statistics,
      [=, &x] {
        return BenchInputs{x.normal({t, h}), x.normal({h})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::rms_norm_forward(in[0], in[1], kEps, kernels); });
  // dy, x, weight, inv_rms
  const MakeInputs backward_inputs = [=, &x] {
    return BenchInputs{x.normal({t, h}), x.normal({t, h}), x.normal({h}), x.full({t}, 1)};
  };
  add("rms_norm", "backward", {t, h}, 0, 3 * plane + row + statistics + dweight, backward_inputs,
      [](const BenchInputs& in, Kernels kernels) { ops::rms_norm_backward(in[0], in[1], in[2], in[3], kernels); });
  add(
      "add_rms_norm", "forward", {t, h}, 0, 4 * plane + row + statistics,
      [=, &x] {
        return BenchInputs{x.normal({t, h}), x.normal({t, h}), x.normal({h})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::add_rms_norm_forward(in[0], in[1], in[2], kEps, kernels); });
  // dy, sum, weight, inv_rms, dsum
  add(
      "add_rms_norm", "backward", {t, h}, 0, 4 * plane + row + statistics + dweight,
      [=, &x] {
        BenchInputs inputs = backward_inputs();
        inputs.push_back(x.normal({t, h}));
        return inputs;
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::add_rms_norm_backward(in[0], in[4], in[1], in[2], in[3], kernels);
      });
}

void OperatorCases::add_layer_norms() {
  const int64_t t = t_, h = h_;
  const double plane = elements({t, h}) * element_, row = element_ * static_cast<double>(h);
  const double statistics = 2 * kWide * static_cast<double>(t), grads = 2 * kWide * static_cast<double>(h);
  const BenchTensors& x = x_;
  // x, weight, bias
  const MakeInputs forward_inputs = [=, &x] { return BenchInputs{x.normal({t, h}), x.normal({h}), x.normal({h})}; };
  add("layer_norm", "forward", {t, h}, 0, 2 * plane + 2 * row + statistics, forward_inputs,
      [](const BenchInputs& in, Kernels kernels) {
        ops::layer_norm_forward(in[0], in[1], in[2], kEps, /*zero_centered_weight=*/false, kernels);
      });
  // dy, x, weight, mean, inv_std
  const MakeInputs backward_inputs = [=, &x] {
    return BenchInputs{x.normal({t, h}), x.normal({t, h}), x.normal({h}), x.full({t}, 0), x.full({t}, 1)};
  };
  add("layer_norm", "backward", {t, h}, 0, 3 * plane + row + statistics + grads, backward_inputs,
      [](const BenchInputs& in, Kernels kernels) {
        ops::layer_norm_backward(in[0], in[1], in[2], in[3], in[4], /*zero_centered_weight=*/false, kernels);
      });
  // and residual
  add(
      "add_layer_norm", "forward", {t, h}, 0, 4 * plane + 2 * row + statistics,
      [=, &x] {
        BenchInputs inputs = forward_inputs();
        inputs.push_back(x.normal({t, h}));
        return inputs;
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::add_layer_norm_forward(in[0], in[3], in[1], in[2], kEps, /*zero_centered_weight=*/false, kernels);
      });
  // and dsum
  add(
      "add_layer_norm", "backward", {t, h}, 0, 4 * plane + row + statistics + grads,
      [=, &x] {
        BenchInputs inputs = backward_inputs();
        inputs.push_back(x.normal({t, h}));
        return inputs;
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::add_layer_norm_backward(in[0], in[5], in[1], in[2], in[3], in[4], /*zero_centered_weight=*/false, kernels);
      });
}

void OperatorCases::add_rotary() {
  const int64_t b = b_, s = s_, n = n_, d = d_, half = d_ / 2;
  const BenchTensors& x = x_;
  const MakeInputs inputs = [=, &x] {
    return BenchInputs{x.normal({b, s, n, d}), x.wide_normal({1, s, half}), x.wide_normal({1, s, half})};
  };
  const double bytes = 2 * elements({b, s, n, d}) * element_ + 2 * elements({s, half}) * kWide;
  add("rotary", "forward", {b, s, n, d}, 0, bytes, inputs,
      [](const BenchInputs& in, Kernels kernels) { ops::rotary(in[0], in[1], in[2], false, kernels); });
  add("rotary", "backward", {b, s, n, d}, 0, bytes, inputs,
      [](const BenchInputs& in, Kernels kernels) { ops::rotary_backward(in[0], in[1], in[2], false, kernels); });
}

void OperatorCases::add_swiglu() {
  const int64_t t = t_, f = f_;
  const double plane = elements({t, f}) * element_;
  const BenchTensors& x = x_;
  add(
      "swiglu", "forward", {t, 2 * f}, 0, 3 * plane,
      [=, &x] {
        return BenchInputs{x.normal({t, 2 * f})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::swiglu(in[0], kernels); });
  add(
      "swiglu", "backward", {t, 2 * f}, 0, 5 * plane,
      [=, &x] {
        return BenchInputs{x.normal({t, f}), x.normal({t, 2 * f})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::swiglu_backward(in[0], in[1], kernels); });
}

void OperatorCases::add_activation() {
  const int64_t t = t_, f = f_;
  const double plane = elements({t, f}) * element_;
  const BenchTensors& x = x_;
  const auto add_both = [&](const char* name, ops::ActivationKind kind, bool is_gated) {
    const int64_t columns = is_gated ? 2 * f : f;
    add(
        name, "forward", {t, columns}, 0, (is_gated ? 3 : 2) * plane,
        [=, &x] {
          return BenchInputs{x.normal({t, columns})};
        },
        [=](const BenchInputs& in, Kernels kernels) { ops::activation(in[0], kind, is_gated, kernels); });
    add(
        name, "backward", {t, columns}, 0, (is_gated ? 5 : 3) * plane,
        [=, &x] {
          return BenchInputs{x.normal({t, f}), x.normal({t, columns})};
        },
        [=](const BenchInputs& in, Kernels kernels) {
          ops::activation_backward(in[0], in[1], kind, is_gated, kernels);
        });
  };
  add_both("gelu", ops::ActivationKind::kGeluTanh, false);
  add_both("gelu_erf", ops::ActivationKind::kGelu, false);
  add_both("squared_relu", ops::ActivationKind::kSquaredRelu, false);
  add_both("geglu", ops::ActivationKind::kGeluTanh, true);
}

void OperatorCases::add_linear() {
  const int64_t t = t_, o = 2 * f_, h = h_;
  const double xs = elements({t, h}) * element_, ys = elements({t, o}) * element_, ws = elements({o, h});
  const double product = 2 * elements({t, o, h});
  const BenchTensors& x = x_;
  add(
      "linear", "forward", {t, o, h}, product, xs + ys + ws * element_,
      [=, &x] {
        return BenchInputs{x.normal({t, h}), x.normal({o, h}, kWeightStd)};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::linear_forward(in[0], in[1], /*bias=*/{}, kernels); });
  // dy, w, x, dw: both gradients
  add(
      "linear", "backward", {t, o, h}, 2 * product, 2 * xs + ys + ws * element_ + 2 * ws * kWide,
      [=, &x] {
        return BenchInputs{x.normal({t, o}, kWeightStd), x.normal({o, h}, kWeightStd), x.normal({t, h}),
                           x.wide_normal({o, h})};
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::linear_dgrad(in[0], in[1], kernels);
        ops::linear_wgrad_(in[3], in[0], in[2], /*accumulate=*/true, kernels);
      });
  add(
      "bias_grad", "backward", {t, o}, 0, ys + 2 * kWide * static_cast<double>(o),
      [=, &x] {
        return BenchInputs{x.wide_normal({o}), x.normal({t, o}, kWeightStd)};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::bias_grad_(in[0], in[1], kernels); });
}

// Both layouts of an operand and its amax.
void OperatorCases::add_fp8_cast() {
  const int64_t t = t_, h = h_;
  const BenchTensors& x = x_;
  add(
      "fp8_cast", "forward", {t, h}, 0, elements({t, h}) * (element_ + 2),
      [=, &x] {
        return BenchInputs{x.normal({t, h}), x.full({}, 16), x.full({}, 0)};
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::fp8_cast(in[0], in[1], at::kFloat8_e4m3fn, /*with_transposed=*/true, in[2], kernels);
      });
}

// An MLP weight, packed once and read in every product.
void OperatorCases::add_nf4() {
  const int64_t f = f_, h = h_;
  const BenchTensors& x = x_;
  const double packed = elements({f, h}) / 2, scales = elements({f, h}) / ops::kNf4Block;
  add(
      "nf4", "quantise", {f, h}, 0, elements({f, h}) * element_ + packed + kWide * scales,
      [=, &x] {
        return BenchInputs{x.normal({f, h})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::nf4_quantise(in[0], kernels); });
  add(
      "nf4", "dequantise", {f, h}, 0, elements({f, h}) * element_ + packed + scales,
      [=, &x] {
        const at::Tensor weight = x.normal({f, h});
        const ops::Nf4Blocks blocks = ops::nf4_quantise(weight);
        const ops::Nf4Scales packed_scales = ops::nf4_quantise_scales(blocks.scales.reshape({-1}));
        const at::Tensor first = at::arange(f, weight.options().dtype(at::kInt)) * blocks.scales.size(1);
        return BenchInputs{blocks.codes, packed_scales.codes.view(blocks.scales.sizes()), first, packed_scales.groups,
                           ops::nf4_scale_levels().to(weight.device()), weight};
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::nf4_dequantise({in[0], in[1], in[2], in[3], in[4]}, in[5].size(1), in[5].scalar_type(), kernels);
      });
}

// A ring's step, with every token contributing.
void OperatorCases::add_merge_attention() {
  const int64_t b = b_, s = s_, n = n_, d = d_;
  const BenchTensors& x = x_;
  add(
      "merge_attention", "forward", {b, s, n, d}, 0,
      elements({b, s, n, d}) * (element_ + 2 * kWide) + 3 * kWide * elements({b, s, n}),
      [=, &x] {
        return BenchInputs{x.wide_normal({b, s, n, d}), x.wide_normal({b, n, s}), x.normal({b, s, n, d}),
                           x.wide_normal({b, n, s})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::merge_attention_(in[0], in[1], in[2], in[3], kernels); });
}

// Each token goes to 2 of 8 experts of the model's ffn.
void OperatorCases::add_experts() {
  const int64_t t = t_, h = h_, f = f_, e = kExperts, k = kExpertsOfToken, n = t * k;
  const double pairs = static_cast<double>(n), rows = elements({n, h}) * element_;
  const double fs = elements({n, f}) * element_, ws = elements({e, 2 * f, h}), product = 2 * elements({n, 2 * f, h});
  const BenchTensors& x = x_;
  const auto order = [=, &x] { return ops::sort_by_expert(x.ids({t, k}, e), e); };
  add(
      "grouped_linear", "forward", {n, 2 * f, h, e}, product, rows + 2 * fs + ws * element_,
      [=, &x] {
        return BenchInputs{x.normal({n, h}), x.normal({e, 2 * f, h}, kWeightStd), order().offsets};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::grouped_linear_forward(in[0], in[1], in[2], kernels); });
  // dy, w, x, dw, offsets: both gradients
  add(
      "grouped_linear", "backward", {n, 2 * f, h, e}, 2 * product, 2 * rows + 2 * fs + ws * element_ + 2 * ws * kWide,
      [=, &x] {
        return BenchInputs{x.normal({n, 2 * f}, kWeightStd), x.normal({e, 2 * f, h}, kWeightStd), x.normal({n, h}),
                           x.wide_normal({e, 2 * f, h}), order().offsets};
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::grouped_linear_dgrad(in[0], in[1], in[4], kernels);
        ops::grouped_linear_wgrad_(in[3], in[0], in[2], in[4], /*accumulate=*/true, kernels);
      });
  add(
      "expert_activation", "forward", {n, 2 * f}, 0, 3 * fs + kWide * pairs,
      [=, &x] {
        return BenchInputs{x.normal({n, 2 * f}), x.full({n}, 0.5)};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::expert_activation(in[0], in[1], {}, kernels); });
  add(
      "expert_activation", "backward", {n, 2 * f}, 0, 5 * fs + 2 * kWide * pairs,
      [=, &x] {
        return BenchInputs{x.normal({n, f}), x.normal({n, 2 * f}), x.full({n}, 0.5)};
      },
      [](const BenchInputs& in, Kernels kernels) {
        ops::expert_activation_backward(in[0], in[1], in[2], {}, kernels);
      });
}

void OperatorCases::add_router() {
  const int64_t t = t_, h = h_, e = kExperts, k = kExpertsOfToken;
  const double pairs = elements({t, k});
  const BenchTensors& x = x_;
  add(
      "jitter", "forward", {t, h}, 0, 2 * elements({t, h}) * element_ + kId * static_cast<double>(t),
      [=, &x] {
        return BenchInputs{x.normal({t, h}), x.ids({t}, t)};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::jitter(in[0], in[1], 0.01, 1, kernels); });
  add(
      "sinkhorn", "forward", {t, e}, 0, (kWide + sizeof(double)) * elements({t, e}),
      [=, &x] {
        return BenchInputs{x.wide_normal({t, e})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::sinkhorn(in[0], kernels); });
  const ops::RouterForm form{.num_chosen = k};
  const ops::RouterSums sums{.has_loads = true, .has_balance = true};
  add(
      "router", "forward", {t, k, e}, 0, kWide * elements({t, e}) + (kId + kWide) * pairs,
      [=, &x] {
        return BenchInputs{x.wide_normal({t, e})};
      },
      [=](const BenchInputs& in, Kernels kernels) { ops::route_tokens(in[0], {}, {}, form, sums, kernels); });
  add(
      "router", "backward", {t, k, e}, 0, 2 * kWide * elements({t, e}) + (kId + kWide) * pairs,
      [=, &x] {
        return BenchInputs{x.wide_normal({t, e}), x.ids({t, k}, e), x.wide_normal({t, k}), x.wide_normal({1, e})};
      },
      [=](const BenchInputs& in, Kernels kernels) {
        ops::route_tokens_backward(in[0], in[1], {.weights = in[2], .score_sums = in[3]}, form, sums, kernels);
      });
}

void OperatorCases::add_token_permutation() {
  const int64_t t = t_, h = h_, e = kExperts, k = kExpertsOfToken, n = t * k;
  const double pairs = static_cast<double>(n), bytes = elements({t + n, h}) * element_ + kId * pairs;
  const BenchTensors& x = x_;
  const auto order = [=, &x] { return ops::sort_by_expert(x.ids({t, k}, e), e); };
  add(
      "sort_by_expert", "forward", {t, k, e}, 0, kId * 4 * pairs,
      [=, &x] {
        return BenchInputs{x.ids({t, k}, e)};
      },
      [=](const BenchInputs& in, Kernels kernels) { ops::sort_by_expert(in[0], e, {}, kernels); });
  add(
      "token_permutation", "forward", {t, k, h}, 0, bytes,
      [=, &x] {
        return BenchInputs{x.normal({t, h}), order().source};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::permute_tokens(in[0], in[1], kernels); });
  add(
      "token_permutation", "backward", {t, k, h}, 0, bytes,
      [=, &x] {
        return BenchInputs{x.normal({n, h}), order().slots};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::combine_tokens(in[0], in[1], {}, kernels); });
}

void OperatorCases::add_embedding() {
  const int64_t t = t_, v = v_, h = h_;
  const double ids = kId * static_cast<double>(t);
  const BenchTensors& x = x_;
  add(
      "embedding", "forward", {t, v, h}, 0, ids + 2 * elements({t, h}) * element_,
      [=, &x] {
        return BenchInputs{x.ids({t}, v), x.normal({v, h}, kWeightStd)};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::embedding_forward(in[0], in[1], 0, kernels); });
  add(
      "embedding", "backward", {t, v, h}, 0, ids + elements({t, h}) * (element_ + 2 * kWide),
      [=, &x] {
        return BenchInputs{x.ids({t}, v), x.wide_normal({v, h}), x.normal({t, h})};
      },
      [](const BenchInputs& in, Kernels kernels) { ops::embedding_wgrad_(in[1], in[0], in[2], 0, kernels); });
}

void OperatorCases::add_linear_cross_entropy() {
  const int64_t t = t_, v = v_, h = h_;
  const double product = 2 * elements({t, v, h});
  const double xs = elements({t, h}) * element_, ws = elements({v, h});
  const double rows = static_cast<double>(t) * (kId + 2 * kWide);  // labels, scales, losses
  const BenchTensors& x = x_;
  // x, w, labels, row_scale, dw
  const auto inputs = [=, &x](bool with_grad) {
    BenchInputs result{x.normal({t, h}), x.normal({v, h}, kWeightStd), x.ids({t}, v),
                       x.full({t}, 1 / static_cast<double>(t))};
    if (with_grad) result.push_back(x.wide_normal({v, h}));
    return result;
  };
  add(
      "linear_cross_entropy", "forward", {t, v, h}, product, xs + ws * element_ + rows, [=] { return inputs(false); },
      [](const BenchInputs& in, Kernels kernels) {
        ops::linear_cross_entropy(in[0], in[1], in[2], in[3], /*with_grad=*/false, {},
                                  {.chunk_rows = kHeadRows, .kernels = kernels});
      });
  add(
      "linear_cross_entropy", "forward and backward", {t, v, h}, 3 * product,
      2 * xs + ws * (element_ + 2 * kWide) + rows, [=] { return inputs(true); },
      [](const BenchInputs& in, Kernels kernels) {
        ops::linear_cross_entropy(in[0], in[1], in[2], in[3], /*with_grad=*/true, in[4],
                                  {.chunk_rows = kHeadRows, .kernels = kernels});
      });
}

// The halves for a vocabulary split over ranks, on the rows that the head holds at a time.
void OperatorCases::add_parallel_cross_entropy() {
  const int64_t c = std::min(t_, kHeadRows), v = v_;
  const double plane = elements({c, v}) * element_, rows = static_cast<double>(c);
  const BenchTensors& x = x_;
  add(
      "parallel_cross_entropy", "forward", {c, v}, 0, plane + rows * (kId + 3 * kWide),
      [=, &x] {
        return BenchInputs{x.normal({c, v}), x.ids({c}, v)};
      },
      [v](const BenchInputs& in, Kernels kernels) { ops::softmax_statistics(in[0], in[1], 0, v, kernels); });
  // logits, lse, labels, row_scale; the gradient replaces the logits
  add(
      "parallel_cross_entropy", "backward", {c, v}, 0, 2 * plane + rows * (kId + 2 * kWide),
      [=, &x] {
        return BenchInputs{x.normal({c, v}), x.full({c}, 10), x.ids({c}, v), x.full({c}, 1)};
      },
      [v](const BenchInputs& in, Kernels kernels) {
        ops::cross_entropy_gradient_(in[0], in[1], in[2], in[3], 0, v, kernels);
      });
}

// Backward is the same operator on dy.
void OperatorCases::add_dropout() {
  const int64_t t = t_, h = h_;
  const BenchTensors& x = x_;
  const double bytes = 2 * elements({t, h}) * element_ + kId * static_cast<double>(t);
  for (const char* pass : {"forward", "backward"}) {
    add(
        "dropout", pass, {t, h}, 0, bytes,
        [=, &x] {
          return BenchInputs{x.normal({t, h}), x.arange(t)};
        },
        [](const BenchInputs& in, Kernels kernels) {
          ops::dropout(in[0], in[1], /*column_start=*/0, /*p=*/0.1, /*key=*/1234, kernels);
        });
  }
}

void OperatorCases::add_optimizer() {
  const std::vector<int64_t> sizes = layer_matrices();
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  const BenchTensors& x = x_;
  // In fp32 the master is the model's copy.
  const bool has_model = x.dtype() != at::kFloat;
  // Master and moments are read and written, the gradient is read, the model's copy written.
  const double per_element = 7 * kWide + (has_model ? element_ : 0);
  // grad_scale, then master, gradient, moments and model's copy of each matrix
  constexpr size_t kPerShard = 5;
  add(
      "adamw", "update", {total}, 0, per_element * static_cast<double>(total),
      [=, &x] {
        BenchInputs inputs{x.full({}, 1)};
        for (const int64_t size : sizes) {
          inputs.push_back(x.wide_normal({size}, kWeightStd));
          inputs.push_back(x.wide_normal({size}, kWeightStd));
          inputs.push_back(x.wide_normal({size}, kWeightStd));
          inputs.push_back(x.wide_normal({size}, kWeightStd).square_());
          inputs.push_back(has_model ? x.normal({size}, kWeightStd) : at::Tensor());
        }
        return inputs;
      },
      [](const BenchInputs& in, Kernels kernels) {
        std::vector<ops::AdamwShard> shards;
        for (size_t i = 1; i < in.size(); i += kPerShard) {
          shards.push_back({.model = in[i + 4],
                            .master = in[i],
                            .grad = in[i + 1],
                            .exp_avg = in[i + 2],
                            .exp_avg_sq = in[i + 3],
                            .lr = 1e-4,
                            .weight_decay = 0.1});
        }
        ops::adamw_(shards, in[0], {.step = 100}, kernels);
      });
  add(
      "grad_norm", "forward", {total}, 0, kWide * static_cast<double>(total),
      [=, &x] {
        BenchInputs inputs;
        for (const int64_t size : sizes) inputs.push_back(x.wide_normal({size}, kWeightStd));
        return inputs;
      },
      [](const BenchInputs& in, Kernels kernels) { ops::squared_norm(in, kernels); });
}

}  // namespace

OperatorShape operator_shape(const Resolved& run) {
  const ModelConfig& model = run.config.model;
  ModelConfig with_vocabulary = model;
  with_vocabulary.vocab_size = run.derived.vocab_size;
  return {.b = run.derived.micro_batch_size,
          .s = run.derived.seq_length,
          .h = model.hidden_size,
          .f = model.ffn_size(),
          .v = with_vocabulary.padded_vocab_size(/*tp=*/1),
          .n = model.num_attention_heads,
          .g = model.num_kv_heads(),
          .d = model.query_head_dim()};
}

std::vector<BenchCase> operator_cases(const OperatorShape& shape, const BenchTensors& tensors) {
  OperatorCases all(shape, tensors);
  all.add_norms();
  all.add_layer_norms();
  all.add_rotary();
  for (BenchCase& bench_case : attention_cases({shape.b, shape.s, shape.n, shape.g, shape.d}, tensors, false)) {
    bench_case.name = "attention";
    all.cases.push_back(std::move(bench_case));
  }
  all.add_swiglu();
  all.add_activation();
  all.add_linear();
  all.add_fp8_cast();
  all.add_nf4();
  all.add_merge_attention();
  all.add_experts();
  all.add_router();
  all.add_token_permutation();
  all.add_embedding();
  all.add_linear_cross_entropy();
  all.add_parallel_cross_entropy();
  all.add_dropout();
  all.add_optimizer();
  return std::move(all.cases);
}

}  // namespace megalith
