// The tables of all operators: each function has a reference, a CPU and a meta form, all forms give results of the same
// shapes and dtypes, and a device takes the fastest that is there.
#include "ops/operators.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ops/activation/activation.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
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
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::operators_test {
namespace {

using at::Tensor;
using Results = std::vector<Tensor>;
using Operators = testing::OnDevice;

template <typename... Tensors>
Results results(const std::tuple<Tensors...>& values) {
  return std::apply([](const Tensors&... value) { return Results{value...}; }, values);
}

// The same inputs on any device.
class Inputs {
 public:
  Inputs(at::Device device, at::ScalarType dtype) : device_(device), dtype_(dtype) {}

  Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes).to(dtype_).to(device_); }
  Tensor wide(at::IntArrayRef sizes) const {
    return at::rand(sizes, dtype_ == at::kDouble ? at::kDouble : at::kFloat).to(device_);
  }
  Tensor integers(const std::vector<int64_t>& values) const { return at::tensor(values, at::kLong).to(device_); }

 private:
  at::Device device_;
  at::ScalarType dtype_;
};

using Calls = std::map<std::string, std::function<Results(const Inputs&, Kernels)>>;

Results call_attention(const Inputs& in, Kernels kernels, bool is_backward) {
  const Tensor q = in.random({2, 5, 4, 6}), k = in.random({2, 7, 2, 6}), v = in.random({2, 7, 2, 3});
  const AttentionMask mask{.bias = in.wide({1, 4, 5, 7})};
  const auto [out, lse] = attention_forward(q, k, v, 1, mask, {}, kernels);
  if (!is_backward) return {out, lse};
  const AttentionGradients d = attention_backward(out, q, k, v, out, lse, 1, mask, {}, true, kernels);
  return {d.dq, d.dk, d.dv, d.dbias};
}

Calls norm_calls() {
  return {{"rms_norm_forward",
           [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 8}), weight = in.random({8});
             Results all = results(rms_norm_forward(x, weight, 1e-5, kernels));
             for (const Tensor& y : results(add_rms_norm_forward(x, x, weight, 1e-5, kernels))) all.push_back(y);
             return all;
           }},
          {"rms_norm_backward",
           [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 8}), weight = in.random({8}), inv_rms = in.wide({3});
             Results all = results(rms_norm_backward(x, x, weight, inv_rms, kernels));
             for (const Tensor& d : results(add_rms_norm_backward(x, x, x, weight, inv_rms, kernels))) all.push_back(d);
             return all;
           }},
          {"layer_norm_forward",
           [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 8}), weight = in.random({8});
             Results all = results(layer_norm_forward(x, weight, weight, 1e-5, false, kernels));
             for (const Tensor& y : results(add_layer_norm_forward(x, x, weight, weight, 1e-5, false, kernels))) {
               all.push_back(y);
             }
             return all;
           }},
          {"layer_norm_backward", [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 8}), weight = in.random({8}), rows = in.wide({3});
             Results all = results(layer_norm_backward(x, x, weight, rows, rows, false, kernels));
             for (const Tensor& d : results(add_layer_norm_backward(x, x, x, weight, rows, rows, false, kernels))) {
               all.push_back(d);
             }
             return all;
           }}};
}

// In-place functions give what they wrote.
Calls product_calls() {
  return {
      {"linear_forward",
       [](const Inputs& in, Kernels kernels) {
         return Results{linear_forward(in.random({3, 8}), in.random({5, 8}), in.random({5}), kernels)};
       }},
      {"linear_dgrad",
       [](const Inputs& in, Kernels kernels) {
         return Results{linear_dgrad(in.random({3, 5}), in.random({5, 8}), kernels)};
       }},
      {"linear_wgrad_",
       [](const Inputs& in, Kernels kernels) {
         const Tensor dw = in.wide({5, 8});
         linear_wgrad_(dw, in.random({3, 5}), in.random({3, 8}), true, kernels);
         return Results{dw};
       }},
      {"bias_grad_",
       [](const Inputs& in, Kernels kernels) {
         const Tensor db = in.wide({5});
         bias_grad_(db, in.random({3, 5}), kernels);
         return Results{db};
       }},
      {"embedding_forward",
       [](const Inputs& in, Kernels kernels) {
         return Results{embedding_forward(in.integers({4, 0, 9}), in.random({5, 8}), 0, kernels)};
       }},
      {"embedding_wgrad_",
       [](const Inputs& in, Kernels kernels) {
         const Tensor dw = in.wide({5, 8});
         embedding_wgrad_(dw, in.integers({4, 0, 9}), in.random({3, 8}), 0, kernels);
         return Results{dw};
       }},
      {"grouped_linear_forward",
       [](const Inputs& in, Kernels kernels) {
         return Results{
             grouped_linear_forward(in.random({3, 8}), in.random({2, 5, 8}), in.integers({0, 1, 3}), kernels)};
       }},
      {"grouped_linear_dgrad",
       [](const Inputs& in, Kernels kernels) {
         return Results{grouped_linear_dgrad(in.random({3, 5}), in.random({2, 5, 8}), in.integers({0, 1, 3}), kernels)};
       }},
      {"grouped_linear_wgrad_",
       [](const Inputs& in, Kernels kernels) {
         const Tensor dw = in.wide({2, 5, 8});
         grouped_linear_wgrad_(dw, in.random({3, 5}), in.random({3, 8}), in.integers({0, 1, 3}), true, kernels);
         return Results{dw};
       }},
      {"linear_cross_entropy",
       [](const Inputs& in, Kernels kernels) {
         const Tensor dw = in.wide({6, 8});
         Results all = results(linear_cross_entropy(in.random({3, 8}), in.random({6, 8}), in.integers({0, 5, 2}),
                                                    in.wide({3}), true, dw, {.kernels = kernels}));
         all.push_back(dw);
         return all;
       }},
      {"softmax_statistics",
       [](const Inputs& in, Kernels kernels) {
         const SoftmaxStatistics s = softmax_statistics(in.random({3, 6}), in.integers({0, 5, 2}), 0, 6, kernels);
         return Results{s.row_max, s.sum_exp, s.target_logit};
       }},
      {"cross_entropy_gradient_", [](const Inputs& in, Kernels kernels) {
         const Tensor logits = in.random({3, 6});
         cross_entropy_gradient_(logits, in.wide({3}), in.integers({0, 5, 2}), in.wide({3}), 0, 6, kernels);
         return Results{logits};
       }}};
}

Calls activation_calls() {
  return {{"swiglu",
           [](const Inputs& in, Kernels kernels) {
             return Results{swiglu(in.random({3, 8}), kernels)};
           }},
          {"swiglu_backward",
           [](const Inputs& in, Kernels kernels) {
             return Results{swiglu_backward(in.random({3, 4}), in.random({3, 8}), kernels)};
           }},
          {"activation",
           [](const Inputs& in, Kernels kernels) {
             return Results{activation(in.random({3, 8}), ActivationKind::kGelu, false, kernels),
                            activation(in.random({3, 8}), ActivationKind::kGeluTanh, true, kernels),
                            activation(in.random({3, 8}), ActivationKind::kSquaredRelu, false, kernels)};
           }},
          {"activation_backward",
           [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 8});
             return Results{activation_backward(in.random({3, 8}), x, ActivationKind::kGeluTanh, false, kernels),
                            activation_backward(in.random({3, 4}), x, ActivationKind::kGelu, true, kernels),
                            activation_backward(in.random({3, 8}), x, ActivationKind::kSquaredRelu, false, kernels)};
           }},
          {"expert_activation",
           [](const Inputs& in, Kernels kernels) {
             return Results{expert_activation(in.random({3, 8}), in.wide({3}), {}, kernels),
                            expert_activation(in.random({3, 8}), {}, {ActivationKind::kGelu, false}, kernels)};
           }},
          {"expert_activation_backward", [](const Inputs& in, Kernels kernels) {
             Results all =
                 results(expert_activation_backward(in.random({3, 4}), in.random({3, 8}), in.wide({3}), {}, kernels));
             for (const Tensor& d :
                  results(expert_activation_backward(in.random({3, 4}), in.random({3, 8}), {}, {}, kernels))) {
               all.push_back(d);
             }
             return all;
           }}};
}

Results call_router(const Inputs& in, Kernels kernels, bool is_backward) {
  const Tensor logits = in.wide({3, 6}), bias = in.wide({6});
  const RouterForm form{.num_chosen = 2, .choice = RouterChoice::kSigmoid, .weights = RouterWeights::kSigmoidShare};
  const RouterSums sums{.has_loads = true,
                        .has_balance = true,
                        .has_z = true,
                        .shares = RouterShares::kSigmoid,
                        .num_sequences = 2,
                        .sequence_length = 2,
                        .first = 1};
  const RoutedTokens r = route_tokens(logits, bias, {}, form, sums, kernels);
  if (!is_backward) return {r.experts, r.weights, r.loads, r.counts, r.score_sums, r.z_sum};
  return {route_tokens_backward(logits, r.experts, {r.weights, r.score_sums, r.z_sum}, form, sums, kernels)};
}

Calls router_calls() {
  return {{"jitter",
           [](const Inputs& in, Kernels kernels) {
             return Results{jitter(in.random({3, 8}), in.integers({4, 0, 9}), 0.1, 7, kernels)};
           }},
          {"sinkhorn",
           [](const Inputs& in, Kernels kernels) {
             return Results{sinkhorn(in.wide({5, 3}), kernels)};
           }},
          {"route_tokens", [](const Inputs& in, Kernels kernels) { return call_router(in, kernels, false); }},
          {"route_tokens_backward", [](const Inputs& in, Kernels kernels) { return call_router(in, kernels, true); }}};
}

Calls other_calls() {
  const auto rotary_by = [](auto* function) {
    return [function](const Inputs& in, Kernels kernels) {
      return Results{function(in.random({2, 5, 3, 8}), in.wide({1, 5, 3}), in.wide({1, 5, 3}), false, kernels)};
    };
  };
  return {{"rotary", rotary_by(rotary)},
          {"rotary_backward", rotary_by(rotary_backward)},
          {"attention_forward", [](const Inputs& in, Kernels kernels) { return call_attention(in, kernels, false); }},
          {"attention_backward", [](const Inputs& in, Kernels kernels) { return call_attention(in, kernels, true); }},
          {"merge_attention_",
           [](const Inputs& in, Kernels kernels) {
             const Tensor out = in.wide({2, 5, 3, 8}), lse = in.wide({2, 3, 5});
             merge_attention_(out, lse, in.random({2, 5, 3, 8}), in.wide({2, 3, 5}), kernels);
             return Results{out, lse};
           }},
          {"dropout",
           [](const Inputs& in, Kernels kernels) {
             return Results{dropout(in.random({3, 8}), in.integers({4, 0, 9}), 0, 0.5, 7, kernels)};
           }},
          {"fp8_cast",
           [](const Inputs& in, Kernels kernels) {
             const Tensor amax = in.wide({});
             const Fp8Cast cast = fp8_cast(in.random({3, 8}), in.wide({}), at::kFloat8_e4m3fn, true, amax, kernels);
             return Results{cast.values, cast.transposed, amax};
           }},
          {"nf4_quantise",
           [](const Inputs& in, Kernels kernels) {
             const Nf4Blocks blocks = nf4_quantise(in.random({3, 70}), kernels);
             return Results{blocks.codes, blocks.scales};
           }},
          {"nf4_dequantise",
           [](const Inputs& in, Kernels kernels) {
             const Tensor x = in.random({3, 70}), levels = in.wide({256}).to(at::kFloat);
             const Tensor codes = (in.wide({3, 35}) * 256).to(at::kByte);
             const Tensor scales = (in.wide({3, 2}) * 256).to(at::kByte);
             const Nf4Matrix matrix{codes, scales, in.integers({0, 2, 4}).to(at::kInt), in.wide({1, 2}).to(at::kFloat),
                                    levels};
             return Results{nf4_dequantise(matrix, 70, x.scalar_type(), kernels)};
           }},
          {"sort_by_expert",
           [](const Inputs& in, Kernels kernels) {
             const ExpertOrder order = sort_by_expert(in.integers({0, 2, 1, 0}).view({2, 2}), 3, {}, kernels);
             return Results{order.counts, order.offsets, order.pairs, order.source, order.slots};
           }},
          {"permute_tokens",
           [](const Inputs& in, Kernels kernels) {
             return Results{permute_tokens(in.random({2, 8}), in.integers({1, 0, -1, 0}), kernels)};
           }},
          {"combine_tokens",
           [](const Inputs& in, Kernels kernels) {
             const Tensor slots = in.integers({1, 0, -1, 2}).view({2, 2});
             return Results{combine_tokens(in.random({4, 8}), slots, in.wide({2, 2}), kernels)};
           }},
          {"combine_tokens_backward",
           [](const Inputs& in, Kernels kernels) {
             const Tensor source = in.integers({0, 0, 1, -1}), slots = in.integers({1, 0, -1, 2}).view({2, 2});
             return results(combine_tokens_backward(in.random({2, 8}), in.random({4, 8}), source, slots,
                                                    in.wide({2, 2}), kernels));
           }},
          {"squared_norm",
           [](const Inputs& in, Kernels kernels) {
             return Results{squared_norm({in.random({3, 8}), in.random({5})}, kernels)};
           }},
          {"squared_norm_and_zeros",
           [](const Inputs& in, Kernels kernels) {
             return Results{squared_norm_and_zeros({in.random({3, 8}), in.random({5})}, kernels)};
           }},
          {"adamw_", [](const Inputs& in, Kernels kernels) {
             const AdamwShard shard{.model = in.random({5}),
                                    .master = in.wide({5}),
                                    .grad = in.wide({5}),
                                    .exp_avg = in.wide({5}),
                                    .exp_avg_sq = in.wide({5})};
             adamw_({shard}, in.wide({}), {}, kernels);
             return Results{shard.model, shard.master, shard.exp_avg, shard.exp_avg_sq};
           }}};
}

// A call of every function, by its name in the list.
Calls all_calls() {
  Calls all = norm_calls();
  for (Calls part : {product_calls(), activation_calls(), router_calls(), other_calls()}) all.merge(part);
  return all;
}

TEST(Operators, EveryFunctionHasReferenceCpuAndMetaForms) {
  // Throws where one is missing; that no function of a table is left out holds at compile time.
  const auto reference = list_operators(at::kCPU, Kernels::kReference), cpu = list_operators(at::kCPU);
  const auto meta = list_operators(at::kMeta);
  std::set<std::string> names;
  for (size_t i = 0; i < cpu.size(); ++i) {
    const std::string name = cpu[i].name;
    EXPECT_TRUE(names.insert(name).second) << name << " is listed twice";
    EXPECT_EQ(reference[i].origin, Origin::kReference) << name;
    EXPECT_EQ(cpu[i].origin, Origin::kOwnKernel) << name;
    EXPECT_EQ(meta[i].origin, Origin::kShapes) << name;
  }
  std::set<std::string> called;
  for (const auto& [name, call] : all_calls()) called.insert(name);
  EXPECT_EQ(called, names) << "the calls of this test are not those of the list";
}

TEST_P(Operators, AllFormsGiveTheSameShapesAndDtypes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const auto& [name, call] : all_calls()) {
      const Results fused = call(Inputs(GetParam(), dtype), Kernels::kFused);
      const Results reference = call(Inputs(GetParam(), dtype), Kernels::kReference);
      const Results meta = call(Inputs(at::kMeta, dtype), Kernels::kFused);
      ASSERT_EQ(fused.size(), meta.size()) << name;
      ASSERT_EQ(reference.size(), meta.size()) << name;
      for (size_t i = 0; i < meta.size(); ++i) {
        EXPECT_TRUE(meta[i].is_meta()) << name << " result " << i;
        for (const Results* form : {&fused, &reference}) {
          EXPECT_EQ((*form)[i].sizes(), meta[i].sizes()) << name << " result " << i;
          EXPECT_EQ((*form)[i].scalar_type(), meta[i].scalar_type()) << name << " result " << i;
          EXPECT_EQ((*form)[i].device(), GetParam()) << name << " result " << i;
        }
      }
    }
  }
}
MEGALITH_ON_EVERY_DEVICE(Operators);

// A table of one function, whose forms give their own numbers.
struct NumberTable {
  int (*number)(const Tensor& x);
};
constexpr NumberTable kOne{.number = [](const Tensor&) { return 1; }}, kTwo{.number = [](const Tensor&) { return 2; }},
    kThree{.number = [](const Tensor&) { return 3; }}, kFour{.number = [](const Tensor&) { return 4; }},
    kFive{.number = [](const Tensor&) { return 5; }}, kNothing{};

int number_on(const Operator<NumberTable>& op, at::DeviceType device, Kernels kernels = Kernels::kFused) {
  return op.choose(&NumberTable::number, at::Device(device, 0), kernels).function(Tensor());
}

TEST(OperatorChoice, AGpuTakesOurKernelElseLibTorchsElseTheReference) {
  const Operator<NumberTable> all{
      .name = "number", .reference = &kOne, .cpu = &kTwo, .meta = &kThree, .gpu = &kFour, .gpu_aten = &kFive};
  EXPECT_EQ(number_on(all, at::kCPU), 2);
  EXPECT_EQ(number_on(all, at::kMeta), 3);
  EXPECT_EQ(number_on(all, at::kMeta, Kernels::kReference), 3);
  for (const at::DeviceType gpu : {at::kCUDA, at::kXPU, at::kPrivateUse1}) {
    EXPECT_EQ(number_on(all, gpu), 4);
    EXPECT_EQ(number_on(all, gpu, Kernels::kReference), 1);
    Operator<NumberTable> fewer = all;
    fewer.gpu = &kNothing;
    EXPECT_EQ(number_on(fewer, gpu), 5);
    fewer.gpu = nullptr;
    EXPECT_EQ(number_on(fewer, gpu), 5);
    fewer.gpu_aten = &kNothing;
    EXPECT_EQ(number_on(fewer, gpu), 1);
    fewer.gpu_aten = nullptr;
    EXPECT_EQ(number_on(fewer, gpu), 1);
  }
  EXPECT_EQ(number_on(all, at::kCPU, Kernels::kReference), 1);
}

TEST(OperatorChoice, AMissingFormIsNamed) {
  const Operator<NumberTable> op{.name = "number", .reference = &kOne, .cpu = &kNothing, .meta = &kThree};
  try {
    number_on(op, at::kCPU);
    FAIL() << "a missing form was chosen";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("number has no own kernel for cpu"), std::string::npos) << error.what();
  }
}

TEST(OperatorChoice, ProductsOfAGpuAreLibTorchs) {
  std::map<std::string, Origin> origins;
  for (const OperatorOrigin& one : list_operators(at::Device(at::kCUDA, 0))) origins[one.name] = one.origin;
  for (const char* name : {"linear_forward", "linear_dgrad", "linear_wgrad_"}) {
    EXPECT_EQ(origins.at(name), Origin::kLibTorch) << name;
  }
  EXPECT_NE(origins.at("embedding_wgrad_"), Origin::kLibTorch);
}

TEST(OperatorChoice, AGradientIsNotLostSilently) {
  const Tensor x = at::randn({2, 3}).requires_grad_(true), weight = at::ones({3});
  try {
    rms_norm_forward(x, weight, 1e-5);
    FAIL() << "the gradient was cut silently";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("rms_norm_forward: the gradient would be lost"), std::string::npos)
        << error.what();
  }
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW(rms_norm_forward(x, weight, 1e-5));
}

TEST(OperatorChoice, ReferencesAreRecordedByAten) {
  const Tensor x = at::randn({2, 6}, at::kDouble).requires_grad_(true), dy = at::randn({2, 3}, at::kDouble);
  swiglu(x, Kernels::kReference).backward(dy);
  EXPECT_TENSOR_NEAR(x.grad(), swiglu_backward(dy, x.detach()), {.abs = 1e-14});  // a few roundings in float64
}

}  // namespace
}  // namespace megalith::ops::operators_test
