// Routers choose, weigh, drop and balance as loops over tokens and experts do, and the same on every layout.
#include "nn/expert_router.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/expert_router_cases.h"
#include "nn/expert_router_reference.h"
#include "nn/router_selection.h"
#include "ops/router/router.h"
#include "ops/sinkhorn/sinkhorn.h"
#include "support/kept_bytes.h"
#include "support/module_tools.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

using namespace test;
using namespace router_test;

at::Tensor weigh_experts(const at::Tensor& logits, const at::Tensor& experts, const RouterOptions& options) {
  return ops::route_tokens(logits, {}, experts, router_form(options), {}, Kernels::kReference).weights;
}
at::Tensor select_experts(const at::Tensor& logits, const RouterOptions& options) {
  return ops::route_tokens(logits, {}, {}, router_form(options), {}, Kernels::kReference).experts;
}

TEST(ExpertRouter, IsWhatLoopsOverTokensAndExpertsGive) {
  for (const RouterCase& test : every_case()) {
    const RouterInputs in = inputs_of(test);
    expect_same(route_on(test, in, {}), route_in_loops(test, in), 1e-12, test.name);
  }
}

TEST(ExpertRouter, TheCasesAreNoSpecialOnes) {
  // Groups, biases, capacities and Sinkhorn's balance change something; all that is dropped is not one expert's.
  const auto outcome = [](RouterCase test, const auto& change) {
    const RouterInputs in = inputs_of(test);
    change(test.options);
    return route_in_loops(test, in);
  };
  const auto choices = [&](const RouterCase& test, const auto& change) {
    return std::get<0>(outcome(test, change).experts.sort(1));
  };
  const auto same = [](RouterOptions&) {};
  for (const RouterCase& test : score_cases()) {
    if (test.options.moe_router_num_groups > 0) {
      EXPECT_FALSE(
          at::equal(choices(test, same), choices(test, [](RouterOptions& o) { o.moe_router_num_groups.reset(); })))
          << test.name;
    }
    if (test.options.moe_router_enable_expert_bias) {
      EXPECT_FALSE(at::equal(choices(test, same),
                             choices(test, [](RouterOptions& o) { o.moe_router_enable_expert_bias = false; })))
          << test.name;
    }
  }
  for (const RouterCase& test : microbatch_cases()) {
    if (test.options.moe_expert_capacity_factor.value_or(-1) > 0) {
      const RouterOutcome out = outcome(test, same);
      EXPECT_GT(out.num_dropped, 0) << test.name;
      const at::Tensor of_dropped = out.experts.masked_select(out.keep.logical_not());
      EXPECT_LT(of_dropped.min().item<int64_t>(), of_dropped.max().item<int64_t>()) << test.name;
    }
    if (test.options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) {
      EXPECT_FALSE(at::equal(choices(test, same), choices(test, [](RouterOptions& o) {
                               o.moe_router_load_balancing_type = RouterBalancing::kNone;
                             })));
    }
  }
}

TEST(ExpertRouter, EveryLayoutIsOneRank) {
  // 60 tokens: 7 tp ranks have 63 rows, and of two cp ranks with 30 each 4 tp ranks have 32.
  for (const RouterLayout& layout : {RouterLayout{2, 1}, {1, 2}, {2, 2}, {7, 1}, {4, 2}, {1, 5}}) {
    for (const RouterCase& test : every_case()) {
      const RouterInputs in = inputs_of(test);
      expect_same(route_on(test, in, layout), route_on(test, in, {}), 1e-12, test.name + layout.text());
    }
  }
}

TEST(ExpertRouter, RanksOfPaddingAloneTakePart) {
  // Four tokens on eight tp ranks, and one on two.
  for (RouterCase test : every_case()) {
    test.b = 1;
    for (const auto& [length, layout] : {std::pair{int64_t{4}, RouterLayout{8, 1}},
                                         {int64_t{4}, RouterLayout{3, 2}},
                                         {int64_t{1}, RouterLayout{2, 1}}}) {
      test.s = length;
      const RouterInputs in = inputs_of(test);
      expect_same(route_on(test, in, layout), route_in_loops(test, in), 1e-12, test.name + layout.text());
    }
  }
}

TEST(ExpertRouter, AnEmptyMicrobatchGivesTermsOfZero) {
  const Groups groups = Groups::single();
  for (const RouterCase& test : every_case()) {
    ExpertRouter router(router_context(groups), test.options, router_site());
    router.weight().initialise(1);
    attach_gradients(router);
    ForwardContext forward{.row_ids = at::zeros({0, 0}, at::kLong), .objective_scale = 1};
    forward.expert_records = std::make_shared<ExpertRecords>();
    const at::Tensor x = at::zeros({0, kRouterHidden}, at::kDouble).set_requires_grad(true);
    const auto [attached, routing] = router.forward(x, forward, 0);
    EXPECT_EQ(routing.experts.sizes(), (std::vector<int64_t>{0, test.options.moe_router_topk}));
    (attached.sum() + routing.weights.sum()).backward();
    EXPECT_EQ(x.grad().size(0), 0);
    EXPECT_EQ(router.weight().grad().abs().max().item<double>(), 0) << test.name;
    const ExpertRecord& record = forward.expert_records->at(5);
    EXPECT_EQ(record.counts.sum().item<int64_t>(), 0);
    if (record.balance_loss.defined()) {
      EXPECT_EQ(record.balance_loss.item<double>(), 0);
    }
    if (record.z_loss.defined()) {
      EXPECT_EQ(record.z_loss.item<double>(), 0);
    }
  }
}

TEST(ExpertRouter, WholeSequencesOnEveryContextRankAreRoutedAsOnOne) {
  // row_length 0: generation. Capacity and statistics are those of one copy.
  for (const RouterCase& test : every_case()) {
    const RouterInputs in = inputs_of(test);
    const RouterOutcome expected = route_on(test, in, {});
    ThreadWorld(4).run(Mesh({.tp = 2, .cp = 2}), [&](Groups& groups) {
      ExpertRouter router(router_context(groups), test.options, router_site());
      router.weight().data().copy_(in.weight);
      if (router.expert_bias() != nullptr) router.expert_bias()->data().copy_(in.bias);
      ForwardContext forward{.b = test.b, .s = test.s, .row_ids = in.row_ids};
      forward.expert_records = std::make_shared<ExpertRecords>();
      const at::NoGradGuard no_grad;
      const int64_t half = test.b * test.s / 2, first = groups.tp->rank() * half;
      const auto routing = router.forward(in.x.narrow(0, first, half), forward, 2 * half).routing;
      EXPECT_TRUE(at::equal(routing.experts, expected.experts.narrow(0, first, half))) << test.name;
      if (routing.capacity > 0) {
        EXPECT_TRUE(at::equal(routing.keep, expected.keep.narrow(0, first, half)));
      }
      EXPECT_EQ(routing.capacity, expected.capacity);
      const at::Tensor loss = forward.expert_records->at(5).balance_loss;
      if (loss.defined()) {
        EXPECT_NEAR(loss.item<double>(), expected.balance_loss, 1e-12) << test.name;
      }
    });
  }
}

TEST(ExpertRouter, PositionKeepsTheFirstTokensOfEverySequence) {
  // Two sequences of three tokens that all want expert 0, which takes three: Megatron-LM's tokens are
  // (position 0, sequence 0), (0, 1), (1, 0), …
  RouterCase test{"position", router_options(2, 1), 2, 3};
  test.options.moe_router_pre_softmax = true;
  test.options.moe_expert_capacity_factor = 1;
  test.options.moe_token_drop_policy = DropPolicy::kPosition;
  RouterInputs in = inputs_of(test);
  in.x.fill_(1);
  in.weight.select(0, 0).fill_(1);
  in.weight.select(0, 1).fill_(-1);
  const at::Tensor expected = at::tensor({1, 1, 0, 1, 0, 0}).to(at::kBool).view({6, 1});
  for (const RouterLayout& layout : {RouterLayout{1, 1}, RouterLayout{2, 1}, RouterLayout{4, 1}}) {
    const RouterOutcome out = route_on(test, in, layout);
    EXPECT_EQ(out.capacity, 3);
    EXPECT_TENSOR_NEAR(out.keep, expected, {.what = "keep" + layout.text()});
  }
}

TEST(ExpertRouter, NothingIsDroppedWhileTokensAreDecoded) {
  // Two tp ranks with a copy of the sequence each, as under sequence parallelism, and one rank with a single one.
  for (RouterCase test : microbatch_cases()) {
    if (test.options.moe_expert_capacity_factor.value_or(-1) <= 0) continue;
    test.options.moe_expert_capacity_factor = 0.3;
    const RouterInputs in = inputs_of(test);
    EXPECT_GT(route_in_loops(test, in).num_dropped, 0) << test.name;
    for (const int tp : {1, 2}) {
      ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
        ExpertRouter router(router_context(groups), test.options, router_site());
        router.weight().data().copy_(in.weight);
        KvCache cache{.capacity = test.s};
        ForwardContext forward{.b = tp, .s = test.s, .is_training = false, .cache = &cache};
        forward.expert_records = std::make_shared<ExpertRecords>();
        const at::NoGradGuard no_grad;
        const auto routing = router.forward(in.x.narrow(0, 0, test.s), forward, tp * test.s).routing;
        EXPECT_EQ(routing.capacity, 0) << test.name;
        EXPECT_FALSE(routing.keep.defined()) << test.name;
        EXPECT_FALSE(forward.expert_records->at(5).num_dropped.defined()) << test.name;
      });
    }
  }
}

TEST(ExpertRouter, EvaluationTellsTheSameWithoutAGraph) {
  for (const RouterCase& test : every_case()) {
    const RouterInputs in = inputs_of(test);
    RouterCase plain = test;
    plain.options.moe_input_jitter_eps = 0;
    // Without training Sinkhorn balances nothing, but weights are still those of its form.
    RouterOutcome expected = route_on(plain, in, {});
    const RouterOutcome actual = route_on(test, in, {2, 2}, {.is_training = false, .records_graph = false});
    if (test.options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn) {
      plain.options.moe_router_load_balancing_type = RouterBalancing::kNone;
      EXPECT_TRUE(at::equal(actual.experts, route_on(plain, in, {}).experts)) << test.name;
      const at::Tensor logits = in.x.mm(in.weight.t());
      EXPECT_LT(relative_difference(actual.weights, weigh_experts(logits, actual.experts, test.options)), 1e-12);
      continue;
    }
    expected.dx = actual.dx;
    expected.dweight = actual.dweight;
    expect_same(actual, expected, 1e-12, test.name);
    EXPECT_EQ(actual.dweight.abs().max().item<double>(), 0);
  }
}

TEST(ExpertRouter, NarrowModelsMayRouteInWiderNumbers) {
  RouterCase test = objective_cases()[1];
  const RouterInputs in = inputs_of(test, at::kBFloat16);
  const RouterSettings bf16{.dtype = at::kBFloat16};
  const RouterOutcome expected = route_in_loops(test, in);
  const auto expect_near = [&](const RouterOutcome& actual, double tolerance) {
    EXPECT_TRUE(at::equal(actual.experts, expected.experts));
    EXPECT_EQ(actual.weights.scalar_type(), at::kFloat);
    EXPECT_EQ(actual.dweight.scalar_type(), at::kFloat);
    EXPECT_LT(relative_difference(actual.weights, expected.weights), tolerance);
    EXPECT_LT(relative_difference(actual.dweight, expected.dweight), tolerance);
    EXPECT_NEAR(actual.balance_loss, expected.balance_loss, tolerance * expected.balance_loss);
    EXPECT_NEAR(actual.z_loss, expected.z_loss, tolerance * expected.z_loss);
    // dx is rounded to bf16: twice, once where it meets what came by the other way.
    EXPECT_LT(relative_difference(actual.dx, expected.dx), 0x1p-7);
  };
  for (const RouterLayout& layout : {RouterLayout{1, 1}, RouterLayout{2, 2}}) {
    test.options.moe_router_dtype = RouterPrecision::kFp32;
    expect_near(route_on(test, in, layout, bf16), 1e-5);  // logits below 16 to 2^-24, through exp
    test.options.moe_router_dtype = RouterPrecision::kFp64;
    expect_near(route_on(test, in, layout, bf16), 2e-7);  // the results are in fp32
  }
  // A bf16 product: logits are rounded, and nothing after them.
  test.options.moe_router_dtype = RouterPrecision::kModel;
  const RouterOutcome actual = route_on(test, in, {}, bf16);
  const at::Tensor logits = in.x.mm(in.weight.t()).to(at::kBFloat16).to(at::kDouble);
  const at::Tensor weights = weigh_experts(logits, actual.experts, test.options);
  EXPECT_LT(relative_difference(actual.weights, weights), 1e-6);
  EXPECT_GT(relative_difference(actual.weights, expected.weights), 1e-5);
  EXPECT_LT(relative_difference(actual.dweight, expected.dweight), 0.1);
}

TEST(ExpertRouter, AFrozenWeightStillLetsGradientsThrough) {
  const RouterCase test = objective_cases()[1];
  const RouterInputs in = inputs_of(test);
  const RouterOutcome expected = route_on(test, in, {});
  const RouterOutcome frozen = route_on(test, in, {2, 1}, {.is_weight_trainable = false});
  EXPECT_LT(relative_difference(frozen.dx, expected.dx), 1e-12);
  const RouterOutcome first_layer = route_on(test, in, {2, 1}, {.x_needs_dx = false});
  EXPECT_LT(relative_difference(first_layer.dweight, expected.dweight), 1e-12);
}

TEST(ExpertRouter, CommunicatesOnlyWhatSomebodyNeeds) {
  const auto collectives = [](const RouterCase& test, const RouterSettings& settings, double objective_scale) {
    const RouterInputs in = inputs_of(test);
    std::string text;
    ThreadWorld(2).run(Mesh({.cp = 2}), [&](Groups& groups) {
      ExpertRouter router(router_context(groups), test.options, router_site());
      router.weight().initialise(1);
      ForwardContext forward{.b = test.b, .s = test.s / 2, .row_ids = in.row_ids.narrow(1, 0, test.s / 2)};
      forward.row_length = test.s;
      forward.is_training = settings.is_training;
      forward.objective_scale = objective_scale;
      if (settings.has_records) forward.expert_records = std::make_shared<ExpertRecords>();
      const c10::AutoGradMode mode(settings.records_graph);
      for (const auto& group : groups.all()) {
        group->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
          if (phase != TracePhase::kStart || groups.rank != 0) return;
          text += fmt::format("{} {} {};", name_of(record.kind), record.axis, record.label);
        });
      }
      router.forward(in.x.narrow(0, 0, test.b * test.s / 2), forward, test.b * test.s / 2);
      for (const auto& group : groups.all()) group->set_trace_hook({});
    });
    return text;
  };
  const RouterCase balanced = objective_cases()[1], capacity = microbatch_cases()[0], sinkhorn = microbatch_cases()[6];
  const std::string balance = "all_reduce tp_cp mlp.gate.weight balance;";
  EXPECT_EQ(collectives(balanced, {.has_records = false}, 1), balance);
  EXPECT_EQ(collectives(balanced, {.records_graph = false}, 1), balance);
  EXPECT_EQ(collectives(balanced, {.records_graph = false, .has_records = false}, 1), "");
  EXPECT_EQ(collectives(balanced, {.has_records = false}, 0), "");
  EXPECT_EQ(collectives(score_cases()[0], {}, 1), "");
  EXPECT_EQ(collectives(capacity, {}, 1), "all_gather tp_cp mlp.gate.weight choices;");
  EXPECT_EQ(collectives(sinkhorn, {.is_training = false, .has_records = false}, 0), "");
  EXPECT_EQ(collectives(sinkhorn, {.has_records = false}, 0), "all_gather tp_cp mlp.gate.weight logits;");
}

TEST(ExpertRouter, SinkhornEvensOutAndEnds) {
  // Most tokens want expert 0. Every row of the result has the same sum, every column nearly so.
  at::Tensor logits = drawn({40, 4}, 8, 1);
  logits.select(1, 0).add_(2);
  const at::Tensor shares = ops::sinkhorn(logits);
  EXPECT_LT((shares.sum(0) - 0.25).abs().max().item<double>(), 1e-3);
  EXPECT_LT((shares.sum(1) - 0.025).abs().max().item<double>(), 1e-4);
  EXPECT_GT(select_experts(logits, router_options(4, 1)).eq(0).sum().item<int64_t>(), 25);
  EXPECT_LT(shares.argmax(1).eq(0).sum().item<int64_t>(), 20);
  // Beyond fp32's exponents, and with experts that no token wants.
  for (const double scale : {50.0, 200.0})
    EXPECT_TRUE(ops::sinkhorn(logits * scale).isfinite().all().item<bool>()) << scale;
}

TEST(ExpertRouter, ChoicesOfEqualScoresAreTheLowerNumbersInEveryRow) {
  const RouterOptions options = router_options(6, 2);
  const at::Tensor logits = at::zeros({9, 6}, at::kFloat);
  const at::Tensor all = select_experts(logits, options);
  EXPECT_TRUE(at::equal(all, at::arange(2, at::kLong).expand({9, 2})));
  for (int64_t row = 0; row < 9; ++row) {
    EXPECT_TRUE(at::equal(select_experts(logits.narrow(0, row, 1), options), all.narrow(0, row, 1)));
  }
}

TEST(ExpertRouter, ParametersSayWhatRanksHold) {
  RouterOptions options = router_options(6, 2);
  options.moe_router_score_function = RouterScore::kSigmoid;
  options.moe_router_enable_expert_bias = true;
  for (const int tp : {1, 2}) {
    ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
      const ExpertRouter router(router_context(groups, at::kBFloat16), options, router_site());
      const std::vector<Parameter*> parameters = router.parameters();
      ASSERT_EQ(parameters.size(), 2u);
      const Placement& weight = parameters[0]->placement();
      EXPECT_EQ(weight.pieces[0].name, kWeight);
      EXPECT_EQ(weight.replica_axes, (AxisSet{Axis::kDp, Axis::kCp, Axis::kTp}));
      AxisSet partial{Axis::kDp, Axis::kCp};
      if (tp > 1) partial.insert(Axis::kTp);
      EXPECT_EQ(weight.partial_axes, partial);
      EXPECT_EQ(parameters[0]->value().scalar_type(), at::kBFloat16);
      Parameter& bias = *parameters[1];
      EXPECT_EQ(bias.name(), kBias);
      EXPECT_EQ(bias.value().scalar_type(), at::kFloat);
      EXPECT_FALSE(bias.is_trainable());
      bias.initialise(3);
      EXPECT_EQ(bias.data().abs().max().item<double>(), 0);

      // 18 tokens: the product's input; of the decision the logits and the chosen.
      const int64_t tokens = 18 / tp;
      EXPECT_EQ(router.forward_flops({.b = 3, .s = 6}), 2.0 * static_cast<double>(tokens * 6 * kRouterHidden));
      LayerContext context = router_context(groups, at::kBFloat16);
      context.device = at::kMeta;
      ExpertRouter on_meta(context, options, router_site());
      const int64_t kept = kept_bytes({tokens, kRouterHidden}, at::kBFloat16, [&](const at::Tensor& x) {
        return on_meta.forward(x, {.b = 3, .s = 6}, 18).routing.weights;
      });
      EXPECT_EQ(kept, tokens * (kRouterHidden * 2 + 6 * 4 + 2 * 8));
    });
  }
}

TEST(ExpertRouter, AStepsBalanceIsOfItsMicrobatchesSoFarOnAllRanks) {
  // Two dp ranks with two steps of three microbatches; each is passed twice, as recomputation does.
  RouterCase test = objective_cases()[0];
  test.options.moe_router_load_balancing_type = RouterBalancing::kGlobalAuxLoss;
  const int64_t e = test.options.expert_count(), k = test.options.moe_router_topk, n = test.b * test.s;
  const at::Tensor weight = inputs_of(test).weight;
  const auto x_of = [&](int step, int m, int rank) {
    return drawn({n, kRouterHidden}, static_cast<uint64_t>(100 + step * 6 + m * 2 + rank), 2);
  };
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    ExpertRouter router(router_context(groups), test.options, router_site());
    router.weight().data().copy_(weight);
    attach_gradients(router);
    const at::Tensor w = weight.clone().requires_grad_(true);
    at::Tensor objective = at::zeros({}, at::kDouble);
    for (int step = 0; step < 2; ++step) {
      router.begin_step();
      at::Tensor so_far = at::zeros({e}, at::kDouble);
      for (int m = 0; m < 3; ++m) {
        for (int rank = 0; rank < 2; ++rank) {
          const at::Tensor chosen = std::get<1>(x_of(step, m, rank).mm(weight.t()).topk(k));
          for (int64_t t = 0; t < n; ++t)
            for (int64_t j = 0; j < k; ++j) so_far[chosen[t][j].item<int64_t>()] += 1;
        }
        const at::Tensor probabilities = x_of(step, m, groups.rank).mm(w.t()).softmax(1).sum(0);
        const double factor = static_cast<double>(e) / static_cast<double>(k * n * 2 * n);
        const at::Tensor loss = (so_far / (m + 1) * probabilities).sum() * factor;
        objective = objective + loss * (0.25 * test.options.moe_aux_loss_coeff);

        ForwardContext forward{.b = test.b, .s = test.s, .objective_scale = 0.25};
        forward.expert_records = std::make_shared<ExpertRecords>();
        const at::Tensor x = x_of(step, m, groups.rank).set_requires_grad(true);
        {
          const at::NoGradGuard first_pass;
          router.forward(x, forward, n);
        }
        router.forward(x, forward, n).x.sum().backward();
        EXPECT_NEAR(forward.expert_records->at(5).balance_loss.item<double>(), loss.item<double>(), 1e-12);
      }
    }
    objective.backward();
    EXPECT_LT(relative_difference(router.weight().grad(), w.grad()), 1e-12);
    // Evaluation neither counts nor asks the other rank.
    if (groups.rank == 1) return;
    ForwardContext forward{.b = test.b, .s = test.s, .is_training = false};
    forward.expert_records = std::make_shared<ExpertRecords>();
    const at::NoGradGuard no_grad;
    router.forward(x_of(0, 0, 0), forward, n);
    EXPECT_FALSE(forward.expert_records->at(5).mean_counts.defined());
  });
}

TEST(ExpertRouter, AttachedObjectivesEnterBackwardOnce) {
  const at::Tensor x = drawn({2, 3}, 1, 1).set_requires_grad(true), p = drawn({4}, 2, 1).set_requires_grad(true);
  const at::Tensor once = attach_objective(x, p.square().sum());
  const at::Tensor twice = attach_objective(once, p.sum() * 5);
  EXPECT_TRUE(at::equal(twice.detach(), x.detach()));
  (twice * 3).sum().backward();
  EXPECT_LT(relative_difference(x.grad(), at::full({2, 3}, 3.0, at::kDouble)), 1e-15);
  EXPECT_LT(relative_difference(p.grad(), p.detach() * 2 + 5), 1e-15);
  // A constant adds nothing to the graph, and x need not be part of one.
  EXPECT_TRUE(attach_objective(x, at::zeros({}, at::kDouble)).is_same(x));
  const at::Tensor q = drawn({4}, 2, 1).set_requires_grad(true);
  attach_objective(x.detach(), q.sum()).sum().backward();
  EXPECT_LT(relative_difference(q.grad(), at::ones({4}, at::kDouble)), 1e-15);
}

TEST(ExpertRouter, TheBiasMovesTowardsExpertsThatAreLeftOut) {
  Parameter bias("b", Placement::whole("b", {4}), {.dtype = at::kFloat, .init = Init::constant(0.5)});
  bias.initialise(1);
  for (const at::ScalarType dtype : {at::kLong, at::kFloat}) {
    bias.initialise(1);
    update_expert_bias(bias, at::tensor({7, 1, 4, 4}, dtype), 0.25);
    EXPECT_TENSOR_NEAR(bias.data(), at::tensor({0.25, 0.75, 0.5, 0.5}, at::kDouble), {.what = "bias"});
  }
  EXPECT_THROW(update_expert_bias(bias, at::zeros({3}), 0.25), InternalError);
}

TEST(ExpertRouter, RefusesWhatCannotWork) {
  const Groups groups = Groups::single();
  const auto refuses = [&](const auto& change) {
    RouterOptions options = router_options(8, 2);
    change(options);
    try {
      const ExpertRouter router(router_context(groups), options, router_site());
    } catch (const UserError& error) {
      return error.message().starts_with(kWeight) && !error.remedy().empty();
    }
    return false;
  };
  using O = RouterOptions;
  EXPECT_FALSE(refuses([](O&) {}));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_topk = 9; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_topk = 0; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 3, o.moe_router_group_topk = 1; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 4; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 4, o.moe_router_group_topk = 5; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 8, o.moe_router_group_topk = 1; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_enable_expert_bias = true; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 0, o.moe_router_group_topk = 0; }));
  EXPECT_TRUE(refuses([](O& o) { o.moe_router_num_groups = 4, o.moe_router_group_topk = 3; }));  // 2 / 3 best scores
  EXPECT_TRUE(refuses([](O& o) { o.moe_input_jitter_eps = 1; }));
  EXPECT_TRUE(refuses(
      [](O& o) { o.moe_router_load_balancing_type = RouterBalancing::kSinkhorn, o.moe_expert_capacity_factor = 1; }));
  EXPECT_TRUE(refuses([](O& o) {
    o.moe_router_load_balancing_type = RouterBalancing::kSinkhorn, o.moe_router_num_groups = 4,
    o.moe_router_group_topk = 2;
  }));
  ExpertRouter router(router_context(groups), router_options(8, 2), router_site());
  const at::Tensor x = at::zeros({4, kRouterHidden}, at::kDouble);
  EXPECT_THROW(router.forward(x, {.b = 1, .s = 3}, 4), InternalError);
  EXPECT_THROW(router.forward(x, {.b = 1, .s = 5}, 5), InternalError);
  EXPECT_THROW(router.forward(x, {.b = 1, .s = 4, .row_length = 8}, 4), InternalError);
}

}  // namespace
}  // namespace megalith
