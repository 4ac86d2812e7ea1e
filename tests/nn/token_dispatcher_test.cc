// Tokens that go to experts on other ranks come back as if all experts were here: results and all gradients, for both
// dispatchers, whatever the routing.
#include "nn/token_dispatcher.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/deferred_gradients.h"
#include "nn/expert_tools.h"
#include "nn/moe_layer.h"
#include "support/layer_options.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kExpertHidden = 6, kExpertFfn = 8, kExperts = 8, kTokensOfRank = 5;
constexpr const char* kExpertsName = "layer.mlp";

LayerOptions experts_options(ops::ExpertActivation activation = {}) {
  LayerOptions options = plain_layer_options(kExpertHidden);
  options.num_experts = kExperts;
  options.moe_ffn_hidden_size = kExpertFfn;
  options.moe_router_topk = 3;
  options.swiglu = activation.kind == ops::ActivationKind::kSilu;
  options.squared_relu = activation.kind == ops::ActivationKind::kSquaredRelu;
  options.openai_gelu = activation.kind == ops::ActivationKind::kGeluTanh;
  return options;
}

// Gated GELU has no option.
MoeSite experts_site(ops::ExpertActivation activation = {}) {
  if (!activation.is_gated || activation.kind == ops::ActivationKind::kSilu) return {};
  return {.activation = activation};
}

// The tokens of all ranks, and where each goes.
struct RoutedTokens {
  std::string name;
  at::Tensor x, dy;    // (t, h)
  at::Tensor experts;  // (t, k)
  at::Tensor weights;  // (t, k)
  at::Tensor keep = {};
  int64_t rows_per_expert = 0;
};

RoutedTokens make_routed_tokens(const std::string& name, int world_size, int64_t k) {
  at::manual_seed(11);
  const int64_t t = kTokensOfRank * world_size;
  const auto draw = [&](int64_t columns) { return at::randn({t, columns}, at::kDouble); };
  return {.name = name,
          .x = draw(kExpertHidden),
          .dy = draw(kExpertHidden),
          .experts = std::get<1>(at::topk(draw(kExperts), k, 1)),
          .weights = draw(k).abs_()};
}

std::vector<RoutedTokens> every_routing(int world_size) {
  std::vector<RoutedTokens> all;
  all.reserve(7);  // references stay
  const auto add = [&](const std::string& name, int64_t k = 3) -> RoutedTokens& {
    return all.emplace_back(make_routed_tokens(name, world_size, k));
  };
  add("spread");
  RoutedTokens& few = add("only two experts", 2);
  few.experts = at::tensor({int64_t{6}, int64_t{1}}, at::kLong).expand(few.experts.sizes()).contiguous();
  RoutedTokens& one = add("all to one expert", 1);
  one.experts = at::full_like(one.experts, 5);
  RoutedTokens& dropped = add("dropped pairs");
  dropped.keep = at::rand(dropped.experts.sizes(), at::kDouble) < 0.6;
  dropped.keep[2].fill_(false);
  RoutedTokens& none = add("all dropped");
  none.keep = at::zeros(none.experts.sizes(), at::kBool);
  RoutedTokens& padded = add("padded to a capacity");
  padded.rows_per_expert = kTokensOfRank * world_size + 1;
  RoutedTokens& both = add("dropped and padded");
  both.keep = dropped.keep.clone();
  both.rows_per_expert = kTokensOfRank * world_size;
  return all;
}

struct ExpertAnswer {
  at::Tensor y, dx, dweights;  // of all tokens
  std::vector<TensorMap> gradients;
};

ExpertAnswer naive_answer(const RoutedTokens& tokens, const TensorMap& parameters, ops::ExpertActivation activation) {
  const TensorMap leaves = as_leaves(parameters);
  const at::Tensor x = tokens.x.clone().set_requires_grad(true);
  const at::Tensor weights = tokens.weights.clone().set_requires_grad(true);
  const at::Tensor y = naive_mixture(x, tokens.experts, weights, tokens.keep, leaves, kExpertsName, activation);
  y.backward(tokens.dy);
  const at::Tensor dweights = weights.grad().defined() ? weights.grad() : at::zeros_like(weights);
  return {y.detach(), x.grad(), dweights, {gradients_of_leaves(leaves)}};
}

struct ExpertForm {
  DispatcherKind kind = DispatcherKind::kAllToAll;
  Kernels kernels = Kernels::kReference;
  ops::ExpertActivation activation = {};
  bool has_meanwhile = false, recomputes_activation = false, is_deferred = false;
  at::ScalarType dtype = at::kDouble;
  std::string text() const {
    return fmt::format("{}{}", kind == DispatcherKind::kAllToAll ? "all-to-all" : "all-gather",
                       kernels == Kernels::kFused ? ", fused" : "");
  }
};

ExpertAnswer dispatched_answer(const Mesh& mesh, const RoutedTokens& tokens, const TensorMap& parameters,
                               const ExpertForm& form) {
  const auto world_size = static_cast<size_t>(mesh.world_size());
  std::vector<at::Tensor> y(world_size), dx(world_size), dweights(world_size);
  ExpertAnswer answer{.gradients = std::vector<TensorMap>(world_size)};
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    DeferredGradients deferred;
    LayerContext context = expert_context(groups, form.kernels, form.dtype);
    context.recompute.expert_activation = form.recomputes_activation;
    context.deferred_gradients = &deferred;
    GroupedExperts experts(context, kExpertsName, experts_options(form.activation), experts_site(form.activation));
    load(experts, parameters);
    attach_gradients(experts);
    const TokenDispatcher dispatcher(context, form.kind, kExpertsName, kExperts);
    const auto mine = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, groups.rank * kTokensOfRank, kTokensOfRank).clone() : all;
    };
    const at::Tensor x = mine(tokens.x).to(form.dtype).set_requires_grad(true);
    const at::ScalarType wide = form.dtype == at::kDouble ? at::kDouble : at::kFloat;
    const ExpertRouter::Routing routing{.experts = mine(tokens.experts),
                                        .weights = mine(tokens.weights).to(wide).set_requires_grad(true),
                                        .keep = mine(tokens.keep)};
    std::shared_ptr<TokenDispatcher::Dispatched> state;
    int num_calls = 0;
    at::Tensor zero;
    std::function<void()> meanwhile;
    if (form.has_meanwhile) {
      meanwhile = [&] {
        ++num_calls;
        zero = x.sin() * 0;
      };
    }
    const ExpertRows rows = dispatcher.dispatch(x, routing, tokens.rows_per_expert, meanwhile, state);
    EXPECT_EQ(num_calls, form.has_meanwhile ? 1 : 0);
    at::Tensor out = dispatcher.combine(experts.forward(rows), state);
    if (form.has_meanwhile) out = out + zero;
    DeferredGradients::Products products;
    if (form.is_deferred) deferred.begin(products);
    out.backward(mine(tokens.dy).to(form.dtype));
    if (form.is_deferred) {
      deferred.end();
      EXPECT_EQ(products.size(), 2u);
      for (const Parameter* parameter : experts.parameters()) EXPECT_TRUE(parameter->is_grad_empty());
      DeferredGradients::run(products);
    }
    // Also where there was not one row.
    for (const Parameter* parameter : experts.parameters()) EXPECT_FALSE(parameter->is_grad_empty());
    const auto rank = static_cast<size_t>(groups.rank);
    y[rank] = out.detach();
    dx[rank] = x.grad();
    dweights[rank] = routing.weights.grad();
    answer.gradients[rank] = summed_gradients(experts, groups);
  });
  answer.y = at::cat(y);
  answer.dx = at::cat(dx);
  answer.dweights = at::cat(dweights);
  return answer;
}

TensorMap parameters_of_experts(ops::ExpertActivation activation = {}) {
  const Groups single = Groups::single();
  return golden_weights(
      GroupedExperts(expert_context(single), kExpertsName, experts_options(activation), experts_site(activation)),
      at::kDouble);
}

void expect_same_answer(const ExpertAnswer& actual, const ExpertAnswer& expected, const std::string& what,
                        double tolerance = 1e-12) {
  const auto check = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
    EXPECT_TENSOR_NEAR(a, b, {.abs = tolerance, .rel_to_max = tolerance, .what = what + ": " + name});
  };
  check(actual.y, expected.y, "y");
  check(actual.dx, expected.dx, "dx");
  check(actual.dweights, expected.dweights, "dweights");
  expect_held(actual.gradients, expected.gradients[0], what, tolerance);
}

struct ExpertMesh {
  std::string name;
  Mesh mesh;
};
std::vector<ExpertMesh> every_expert_mesh() {
  return {{"one rank", Mesh::single()},
          {"ep2", Mesh({.dp = 2, .ep = 2})},
          {"ep4", Mesh({.dp = 4, .ep = 4})},
          {"ep8", Mesh({.dp = 8, .ep = 8})},
          {"etp2", Mesh({.dp = 2, .etp = 2})},
          {"etp2 ep2", Mesh({.dp = 4, .etp = 2, .ep = 2})},
          {"etp2 ep4", Mesh({.dp = 8, .etp = 2, .ep = 4})},
          {"ep2 edp2", Mesh({.dp = 4, .ep = 2})},
          {"tp2 etp1 ep1", Mesh({.tp = 2})},
          {"tp2 etp2", Mesh({.tp = 2, .dp = 2, .etp = 2})}};
}

TEST(TokenDispatcher, ExpertsElsewhereAreExpertsHere) {
  const TensorMap parameters = parameters_of_experts();
  for (const auto& [name, mesh] : every_expert_mesh()) {
    for (const RoutedTokens& tokens : every_routing(mesh.world_size())) {
      const ExpertAnswer expected = naive_answer(tokens, parameters, {});
      for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
        for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
          const ExpertForm form{.kind = kind, .kernels = kernels};
          expect_same_answer(dispatched_answer(mesh, tokens, parameters, form), expected,
                             fmt::format("{}, {}, {}", name, tokens.name, form.text()));
        }
      }
    }
  }
}

TEST(TokenDispatcher, NarrowDtypesAreKept) {
  const Mesh mesh({.dp = 4, .etp = 2, .ep = 2});
  // bf16 keeps 8 bits: y is rounded six times (rows, gate and up, act, product, parts, sum), by 2^-9 each.
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 2e-6}, std::pair{at::kBFloat16, 0x1p-6}}) {
    TensorMap parameters = parameters_of_experts();
    for (auto& [name, tensor] : parameters) tensor = tensor.to(dtype).to(at::kDouble);
    RoutedTokens tokens = every_routing(4)[3];
    for (at::Tensor* tensor : {&tokens.x, &tokens.dy, &tokens.weights}) *tensor = tensor->to(dtype).to(at::kDouble);
    const ExpertAnswer expected = naive_answer(tokens, parameters, {});
    for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
      for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
        const ExpertForm form{.kind = kind, .kernels = kernels, .dtype = dtype};
        const ExpertAnswer actual = dispatched_answer(mesh, tokens, parameters, form);
        EXPECT_EQ(actual.y.scalar_type(), dtype);
        EXPECT_EQ(actual.dx.scalar_type(), dtype);
        expect_same_answer(actual, expected, form.text() + ", " + c10::toString(dtype), tolerance);
      }
    }
  }
}

TEST(TokenDispatcher, WhatIsComputedMeanwhileChangesNothing) {
  const TensorMap parameters = parameters_of_experts();
  for (const auto& [name, mesh] : every_expert_mesh()) {
    const RoutedTokens tokens = every_routing(mesh.world_size())[0];
    for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
      const ExpertAnswer alone = dispatched_answer(mesh, tokens, parameters, {.kind = kind});
      const ExpertAnswer beside = dispatched_answer(mesh, tokens, parameters, {.kind = kind, .has_meanwhile = true});
      EXPECT_TRUE(at::equal(alone.y, beside.y) && at::equal(alone.dx, beside.dx)) << name;
    }
  }
}

TEST(TokenDispatcher, TransfersAreUnderWayMeanwhileInForwardAndInBackward) {
  const Mesh mesh({.dp = 2, .ep = 2});
  const RoutedTokens tokens = every_routing(2)[0];
  const TensorMap parameters = parameters_of_experts();
  for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
    ThreadWorld(2).run(mesh, [&](Groups& groups) {
      const LayerContext context = expert_context(groups);
      GroupedExperts experts(context, kExpertsName, experts_options(), experts_site());
      load(experts, parameters);
      attach_gradients(experts);
      const TokenDispatcher dispatcher(context, kind, kExpertsName, kExperts);
      std::vector<std::string> events;
      groups.etp_ep->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
        if (record.label.find(" tokens") == std::string::npos) return;
        events.push_back(phase == TracePhase::kStart ? "start" : "end");
      });
      const at::Tensor x = tokens.x.narrow(0, groups.rank * kTokensOfRank, kTokensOfRank).set_requires_grad(true);
      const auto mine = [&](const at::Tensor& all) {
        return all.narrow(0, groups.rank * kTokensOfRank, kTokensOfRank).clone();
      };
      std::shared_ptr<TokenDispatcher::Dispatched> state;
      at::Tensor other;
      const ExpertRows rows = dispatcher.dispatch(
          x, {.experts = mine(tokens.experts), .weights = mine(tokens.weights)}, 0,
          [&] {
            const at::Tensor inner = x.sin();
            inner.register_hook([&](const at::Tensor& gradient) {
              events.push_back("meanwhile");
              return gradient;
            });
            other = inner * 2;
            events.push_back("meanwhile");
          },
          state);
      const at::Tensor y = dispatcher.combine(experts.forward(rows), state) + other;
      const std::vector<std::string> expected = {"start", "meanwhile", "end"};
      EXPECT_EQ(events, expected);
      events.clear();
      y.backward(mine(tokens.dy));
      EXPECT_EQ(events, expected);
      groups.etp_ep->set_trace_hook({});
    });
  }
}

TEST(TokenDispatcher, RowsComeInTheOrderOfExpertsRanksAndTokens) {
  const Mesh mesh({.dp = 2, .ep = 2});
  const RoutedTokens tokens = every_routing(2)[0];
  // A row is known by its token's number.
  const at::Tensor numbers = at::arange(2 * kTokensOfRank, at::kDouble).unsqueeze(1);
  for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
    for (const int64_t padded_to : {0, 11}) {
      ThreadWorld(2).run(mesh, [&](Groups& groups) {
        const TokenDispatcher dispatcher(expert_context(groups), kind, kExpertsName, kExperts);
        const auto mine = [&](const at::Tensor& all) {
          return all.narrow(0, groups.rank * kTokensOfRank, kTokensOfRank).clone();
        };
        std::shared_ptr<TokenDispatcher::Dispatched> state;
        const ExpertRows rows = dispatcher.dispatch(
            mine(numbers), {.experts = mine(tokens.experts), .weights = mine(tokens.weights)}, padded_to, {}, state);
        std::vector<double> expected, expected_weights;
        std::vector<int64_t> expected_offsets = {0};
        for (int64_t expert = groups.rank * 4; expert < groups.rank * 4 + 4; ++expert) {
          for (int64_t i = 0; i < 2 * kTokensOfRank; ++i) {
            for (int64_t j = 0; j < 3; ++j) {
              if (tokens.experts[i][j].item<int64_t>() != expert) continue;
              expected.push_back(static_cast<double>(i));
              expected_weights.push_back(tokens.weights[i][j].item<double>());
            }
          }
          if (padded_to > 0) expected.resize(static_cast<size_t>(expected_offsets.back() + padded_to));
          expected_weights.resize(expected.size());
          expected_offsets.push_back(static_cast<int64_t>(expected.size()));
        }
        EXPECT_TRUE(at::equal(rows.x.squeeze(1), at::tensor(expected, at::kDouble)));
        EXPECT_TRUE(at::equal(rows.weights, at::tensor(expected_weights, at::kDouble)));
        EXPECT_TRUE(at::equal(rows.offsets, at::tensor(expected_offsets, at::kLong)));
      });
    }
  }
}

TEST(TokenDispatcher, MoreRowsThanTheCapacityAreRefused) {
  RoutedTokens tokens = every_routing(1)[2];
  tokens.rows_per_expert = kTokensOfRank - 1;
  EXPECT_THROW(dispatched_answer(Mesh::single(), tokens, parameters_of_experts(), {}), InternalError);
}

TEST(GroupedExperts, EveryActivationEqualsTheLoopOverTokens) {
  using Kind = ops::ActivationKind;
  for (const ops::ExpertActivation activation : {ops::ExpertActivation{Kind::kSilu, true},
                                                 {Kind::kGelu, true},
                                                 {Kind::kGeluTanh, false},
                                                 {Kind::kGelu, false},
                                                 {Kind::kSquaredRelu, false}}) {
    const TensorMap parameters = parameters_of_experts(activation);
    EXPECT_EQ(parameters.contains("layer.mlp.experts.7.gate_proj.weight"), activation.is_gated);
    const std::vector<Mesh> meshes = {Mesh::single(), Mesh({.dp = 4, .etp = 2, .ep = 2})};
    for (const Mesh& mesh : meshes) {
      const RoutedTokens tokens = every_routing(mesh.world_size())[0];
      const ExpertAnswer expected = naive_answer(tokens, parameters, activation);
      for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
        expect_same_answer(
            dispatched_answer(mesh, tokens, parameters, {.kernels = kernels, .activation = activation}), expected,
            fmt::format("activation {}, gated {}", static_cast<int>(activation.kind), activation.is_gated));
      }
    }
  }
}

TEST(GroupedExperts, ComputedAgainOrDeferredGradientsAreTheSame) {
  const TensorMap parameters = parameters_of_experts();
  const Mesh mesh({.dp = 2, .ep = 2});
  for (const RoutedTokens& tokens : every_routing(2)) {
    const ExpertAnswer plain = dispatched_answer(mesh, tokens, parameters, {});
    const auto expect_equal = [&](const ExpertForm& form) {
      const ExpertAnswer other = dispatched_answer(mesh, tokens, parameters, form);
      EXPECT_TRUE(at::equal(plain.dx, other.dx) && at::equal(plain.dweights, other.dweights)) << tokens.name;
      for (size_t rank = 0; rank < 2; ++rank) {
        for (const auto& [name, gradient] : plain.gradients[rank]) {
          EXPECT_TRUE(at::equal(gradient, other.gradients[rank].at(name))) << tokens.name << ", " << name;
        }
      }
    };
    expect_equal({.recomputes_activation = true});
    expect_equal({.is_deferred = true});
    expect_equal({.recomputes_activation = true, .is_deferred = true});
  }
}

TEST(GroupedExperts, FrozenExpertsPassGradientsOn) {
  const Groups groups = Groups::single();
  GroupedExperts experts(expert_context(groups), kExpertsName, experts_options(), experts_site());
  load(experts, parameters_of_experts());
  experts.for_each_parameter([](Parameter& parameter) { parameter.set_trainable(false); });
  const RoutedTokens tokens = every_routing(1)[0];
  const ExpertAnswer expected = naive_answer(tokens, parameters_of_experts(), {});
  const at::Tensor x = tokens.x.clone().set_requires_grad(true);
  const TokenDispatcher dispatcher(expert_context(groups), DispatcherKind::kAllToAll, kExpertsName, kExperts);
  std::shared_ptr<TokenDispatcher::Dispatched> state;
  const ExpertRows rows = dispatcher.dispatch(x, {.experts = tokens.experts, .weights = tokens.weights}, 0, {}, state);
  dispatcher.combine(experts.forward(rows), state).backward(tokens.dy);
  EXPECT_TENSOR_NEAR(x.grad(), expected.dx, {.abs = 1e-12, .what = "dx"});
}

TEST(GroupedExperts, InitialValuesDoNotDependOnTheLayout) {
  const Groups single = Groups::single();
  GroupedExperts whole(expert_context(single), kExpertsName, experts_options(), experts_site());
  whole.for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
  const TensorMap expected = values_of(whole);
  const Mesh mesh({.dp = 4, .etp = 2, .ep = 2});
  std::vector<TensorMap> of_ranks(4);
  ThreadWorld(4).run(mesh, [&](Groups& groups) {
    GroupedExperts experts(expert_context(groups), kExpertsName, experts_options(), experts_site());
    experts.for_each_parameter([](Parameter& parameter) {
      check_placement(parameter.placement());
      EXPECT_TRUE(padding_boxes(parameter.placement()).empty());
      EXPECT_EQ(parameter.placement().partial_axes, AxisSet(Axis::kEdp));
      parameter.initialise(5);
    });
    of_ranks[static_cast<size_t>(groups.rank)] = values_of(experts);
  });
  expect_held(of_ranks, expected, "initial values");
}

TEST(GroupedExperts, GradientsTravelWithTheDenseOnesWhereBothAreCutAlike) {
  const auto axes_of = [](const Mesh& mesh) {
    AxisSet axes;
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      const GroupedExperts experts(expert_context(groups), kExpertsName, experts_options(), experts_site());
      for (const Parameter* parameter : experts.parameters()) {
        EXPECT_EQ(parameter->placement().partial_axes, parameter->placement().replica_axes);
        if (groups.rank == 0) axes = parameter->placement().partial_axes;
      }
    });
    return axes;
  };
  const AxisSet dense = {Axis::kDp, Axis::kCp}, expert = Axis::kEdp;
  EXPECT_EQ(axes_of(Mesh({.dp = 2})), dense);
  EXPECT_EQ(axes_of(Mesh({.tp = 2, .dp = 2, .etp = 2})), dense);
  EXPECT_EQ(axes_of(Mesh({.tp = 2, .dp = 2})), expert);
  EXPECT_EQ(axes_of(Mesh({.tp = 2, .dp = 2, .etp = 2, .ep = 2})), expert);
}

TEST(GroupedExperts, RefusesSizesThatDoNotDivide) {
  const auto build = [](const Mesh& mesh, int64_t num_experts, int64_t ffn) {
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      LayerOptions options = experts_options();
      options.num_experts = num_experts;
      options.moe_ffn_hidden_size = ffn;
      const GroupedExperts experts(expert_context(groups), kExpertsName, options, experts_site());
    });
  };
  EXPECT_NO_THROW(build(Mesh({.dp = 2, .ep = 2}), 6, 7));
  EXPECT_THROW(build(Mesh({.dp = 2, .ep = 2}), 5, 8), UserError);
  EXPECT_THROW(build(Mesh({.dp = 2, .etp = 2}), 5, 7), UserError);
}

}  // namespace
}  // namespace megalith
