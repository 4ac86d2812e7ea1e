// Routers of every kind, and what the ranks of a layout give for one, put together.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "nn/expert_router.h"
#include "nn/expert_router_reference.h"
#include "support/module_tools.h"
#include "support/tensor_near.h"

namespace megalith::router_test {

inline RouterOptions router_options(int64_t num_experts, int64_t topk) {
  return {
      .num_experts = num_experts, .moe_router_topk = topk, .moe_router_load_balancing_type = RouterBalancing::kNone};
}

template <typename Change>
inline RouterCase router_case(const char* name, int64_t num_experts, int64_t topk, const Change& change) {
  RouterCase test{name, router_options(num_experts, topk)};
  change(test.options);
  return test;
}

inline std::vector<RouterCase> score_cases() {
  using O = RouterOptions;
  return {
      router_case("softmax of the chosen", 8, 2, [](O&) {}),
      router_case("one expert", 5, 1, [](O& o) { o.moe_router_pre_softmax = true; }),
      router_case("all experts", 3, 3, [](O& o) { o.moe_router_topk_scaling_factor = 0.5; }),
      router_case("softmax of all", 8, 3,
                  [](O& o) { o.moe_router_pre_softmax = true, o.moe_router_topk_scaling_factor = 1.5; }),
      router_case("soft cap", 8, 3, [](O& o) { o.router_logit_softcapping = 0.5; }),
      router_case("sigmoid, one expert", 8, 1, [](O& o) { o.moe_router_score_function = RouterScore::kSigmoid; }),
      router_case("sigmoid with bias", 9, 3,
                  [](O& o) {
                    o.moe_router_score_function = RouterScore::kSigmoid, o.moe_router_enable_expert_bias = true,
                    o.moe_router_topk_scaling_factor = 2.5;
                  }),
      router_case("groups by their sums", 12, 4,
                  [](O& o) {
                    o.moe_router_score_function = RouterScore::kSigmoid, o.moe_router_enable_expert_bias = true;
                    o.moe_router_num_groups = 4, o.moe_router_group_topk = 2;
                  }),
      router_case("groups by their largest", 12, 3,
                  [](O& o) {
                    o.moe_router_pre_softmax = true, o.moe_router_num_groups = 3, o.moe_router_group_topk = 1;
                    o.moe_router_group_score = GroupScore::kMax;
                  }),
      router_case("groups by their two largest", 12, 2,
                  [](O& o) {
                    o.moe_router_score_function = RouterScore::kSigmoid, o.moe_router_enable_expert_bias = true;
                    o.moe_router_num_groups = 4, o.moe_router_group_topk = 2;
                    o.moe_router_group_score = GroupScore::kTwo;
                  }),
      router_case("groups of the softmax of the chosen", 12, 2,
                  [](O& o) { o.moe_router_num_groups = 4, o.moe_router_group_topk = 1; }),
  };
}

inline std::vector<RouterCase> objective_cases() {
  using O = RouterOptions;
  const auto balanced = [](RouterBalancing balancing, double coeff, double z = 0) {
    return [=](O& o) {
      o.moe_router_load_balancing_type = balancing, o.moe_aux_loss_coeff = coeff, o.moe_z_loss_coeff = z;
    };
  };
  std::vector<RouterCase> cases = {
      router_case("aux", 8, 2, balanced(RouterBalancing::kAuxLoss, 0.7)),
      router_case("aux and z", 8, 3, balanced(RouterBalancing::kAuxLoss, 0.7, 0.3)),
      router_case("sequence aux", 8, 2, balanced(RouterBalancing::kSeqAuxLoss, 0.6)),
      router_case("z", 8, 2, balanced(RouterBalancing::kNone, 0, 0.4)),
  };
  for (RouterCase test : {score_cases()[5], score_cases()[6]}) {
    test.name += ", aux";
    test.options.moe_router_load_balancing_type = RouterBalancing::kAuxLoss;
    test.options.moe_aux_loss_coeff = 0.8;
    cases.push_back(test);
    test.name += " by sequence, z";
    test.options.moe_router_load_balancing_type = RouterBalancing::kSeqAuxLoss;
    test.options.moe_z_loss_coeff = 0.2;
    cases.push_back(test);
  }
  return cases;
}

inline std::vector<RouterCase> microbatch_cases() {
  using O = RouterOptions;
  return {
      router_case("capacity by probability", 8, 2, [](O& o) { o.moe_expert_capacity_factor = 0.8; }),
      router_case("capacity by position", 8, 3,
                  [](O& o) {
                    o.moe_expert_capacity_factor = 0.7, o.moe_token_drop_policy = DropPolicy::kPosition;
                    o.moe_router_load_balancing_type = RouterBalancing::kAuxLoss, o.moe_aux_loss_coeff = 0.5;
                  }),
      // Every weight is one: the earlier tokens stay.
      router_case("capacity of equals", 4, 1, [](O& o) { o.moe_expert_capacity_factor = 0.7; }),
      router_case("no capacity", 8, 2, [](O& o) { o.moe_expert_capacity_factor = -1; }),
      router_case("a capacity of zero, which is none", 8, 2, [](O& o) { o.moe_expert_capacity_factor = 0; }),
      router_case("forced balance", 8, 3,
                  [](O& o) {
                    o.moe_router_force_load_balancing = true, o.moe_expert_capacity_factor = 0.75;
                    o.moe_router_load_balancing_type = RouterBalancing::kAuxLoss, o.moe_aux_loss_coeff = 0.5;
                  }),
      router_case("sinkhorn", 6, 2,
                  [](O& o) {
                    o.moe_router_load_balancing_type = RouterBalancing::kSinkhorn, o.moe_z_loss_coeff = 0.1,
                    o.moe_router_topk_scaling_factor = 2;
                  }),
      router_case("sinkhorn, one expert", 6, 1,
                  [](O& o) { o.moe_router_load_balancing_type = RouterBalancing::kSinkhorn; }),
      router_case("jitter", 8, 2,
                  [](O& o) {
                    o.moe_input_jitter_eps = 0.3;
                    o.moe_router_load_balancing_type = RouterBalancing::kSeqAuxLoss, o.moe_aux_loss_coeff = 0.6;
                  }),
  };
}

inline std::vector<RouterCase> every_case() {
  std::vector<RouterCase> all = score_cases();
  for (const auto& more : {objective_cases(), microbatch_cases()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline at::Tensor drawn(at::IntArrayRef shape, uint64_t number, double scale) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  double* out = tensor.mutable_data_ptr<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) out[i] = scale * test::unit_value(number, static_cast<uint64_t>(i));
  return tensor;
}

inline RouterInputs inputs_of(const RouterCase& test, at::ScalarType dtype = at::kDouble) {
  const int64_t e = test.options.expert_count(), num_tokens = test.b * test.s;
  const auto rounded = [&](const at::Tensor& x) { return x.to(dtype).to(at::kDouble); };
  return {.x = rounded(drawn({num_tokens, kRouterHidden}, 1, 2)),
          .weight = rounded(drawn({e, kRouterHidden}, 2, 1)),
          .bias = drawn({e}, 3, 0.4).to(at::kFloat).to(at::kDouble),
          .dx = rounded(drawn({num_tokens, kRouterHidden}, 4, 1)),
          .dweights = drawn({num_tokens, test.options.moe_router_topk}, 5, 1),
          .row_ids = (at::arange(test.b, at::kLong) * 5 + 2).unsqueeze(1) * test.s + at::arange(test.s, at::kLong)};
}

struct RouterLayout {
  int tp = 1, cp = 1;
  std::string text() const { return fmt::format(" on tp {} cp {}", tp, cp); }
};

struct RouterSettings {
  at::ScalarType dtype = at::kDouble;
  bool is_training = true, records_graph = true, has_records = true, is_weight_trainable = true, x_needs_dx = true;
};

// The token of each of a rank's rows; -1 for padding.
inline std::vector<int64_t> tokens_of_rank(const RouterCase& test, const RouterLayout& layout, int tp_rank,
                                           int cp_rank) {
  const int64_t s = test.s / layout.cp, rows = div_up(test.b * s, layout.tp), chunk = s / 2;
  std::vector<int64_t> tokens;
  for (int64_t i = tp_rank * rows; i < (tp_rank + 1) * rows; ++i) {
    const int64_t sequence = i / s, place = i % s;
    int64_t in_sequence = place;
    if (layout.cp > 1) {
      in_sequence = place < chunk ? cp_rank * chunk + place : (2 * layout.cp - 1 - cp_rank) * chunk + (place - chunk);
    }
    tokens.push_back(i < test.b * s ? sequence * test.s + in_sequence : -1);
  }
  return tokens;
}

// Rows of `whole` by their tokens; padding gets `fill`.
inline at::Tensor rows_of(const at::Tensor& whole, const std::vector<int64_t>& tokens, double fill) {
  const at::Tensor rows = at::full({static_cast<int64_t>(tokens.size()), whole.size(1)}, fill, whole.options());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0) rows[static_cast<int64_t>(i)].copy_(whole[tokens[i]]);
  }
  return rows;
}

inline LayerContext router_context(const Groups& groups, at::ScalarType dtype = at::kDouble) {
  return {.groups = &groups, .dtype = dtype, .kernels = Kernels::kReference, .seed = kRouterSeed};
}

// Results of a layout's ranks, joined in the sequences' order.
inline RouterOutcome route_on(const RouterCase& test, const RouterInputs& in, const RouterLayout& layout,
                              const RouterSettings& settings = {}) {
  const int64_t num_tokens = test.b * test.s, k = test.options.moe_router_topk, e = test.options.expert_count();
  const bool is_double = settings.dtype == at::kDouble;
  RouterOutcome out;
  out.experts = at::full({num_tokens, k}, -1, at::kLong);
  out.weights = at::full({num_tokens, k}, std::nan(""), is_double ? at::kDouble : at::kFloat);
  out.keep = at::zeros({num_tokens, k}, at::kBool);
  out.counts = at::zeros({e}, at::kLong);
  out.dx = at::full({num_tokens, kRouterHidden}, std::nan(""), settings.dtype);
  out.dweight = at::zeros({e, kRouterHidden}, is_double ? at::kDouble : at::kFloat);
  std::mutex mutex;
  bool is_first = true;
  ThreadWorld(layout.tp * layout.cp).run(Mesh({.tp = layout.tp, .cp = layout.cp}), [&](Groups& groups) {
    ExpertRouter router(router_context(groups, settings.dtype), test.options, router_site());
    router.weight().data().copy_(in.weight);
    if (router.expert_bias() != nullptr) router.expert_bias()->data().copy_(in.bias);
    router.weight().set_trainable(settings.is_weight_trainable);
    test::attach_gradients(router);
    int num_ready = 0;
    router.weight().set_ready_hook([&](Parameter&) { ++num_ready; });

    const auto tokens = tokens_of_rank(test, layout, groups.tp->rank(), groups.cp->rank());
    const auto rows = static_cast<int64_t>(tokens.size());
    ForwardContext forward{.b = test.b, .s = test.s / layout.cp};
    std::vector<int64_t> all_tokens;
    for (int tp_rank = 0; tp_rank < layout.tp; ++tp_rank)
      for (const int64_t token : tokens_of_rank(test, layout, tp_rank, groups.cp->rank()))
        if (token >= 0) all_tokens.push_back(token);
    forward.row_ids = rows_of(in.row_ids.view({-1, 1}), all_tokens, 0).view({forward.b, forward.s});
    forward.row_length = layout.cp > 1 ? test.s : 0;
    forward.is_training = settings.is_training;
    forward.objective_scale = in.objective_scale;
    if (settings.has_records) forward.expert_records = std::make_shared<ExpertRecords>();
    // Padding must not be read: NaN would show it.
    at::Tensor x = rows_of(in.x, tokens, std::nan("")).to(settings.dtype);
    x.set_requires_grad(settings.x_needs_dx);

    const c10::AutoGradMode mode(settings.records_graph);
    const auto [attached, routing] = router.forward(x, forward, forward.b * forward.s);
    EXPECT_TRUE(at::equal(attached.detach().nan_to_num(), x.detach().nan_to_num()));
    EXPECT_EQ(routing.keep.defined(), routing.capacity > 0 || rows * layout.tp != forward.b * forward.s);
    if (settings.records_graph) {
      const at::Tensor dweights = rows_of(in.dweights, tokens, 9), dx = rows_of(in.dx, tokens, 0);
      ((attached.to(at::kDouble) * dx).sum() + (routing.weights.to(at::kDouble) * dweights).sum()).backward();
      EXPECT_EQ(num_ready, settings.is_weight_trainable ? 1 : 0) << test.name << layout.text();
    }

    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      if (tokens[i] < 0) {
        EXPECT_FALSE(routing.keep[row].any().item<bool>());
        EXPECT_EQ(routing.weights[row].abs().sum().item<double>(), 0);
        if (x.grad().defined()) {
          EXPECT_EQ(x.grad()[row].abs().sum().item<double>(), 0) << test.name << layout.text();
        }
        continue;
      }
      out.experts[tokens[i]].copy_(routing.experts[row]);
      out.weights[tokens[i]].copy_(routing.weights.detach()[row]);
      out.keep[tokens[i]].copy_(routing.keep.defined() ? routing.keep[row] : at::ones({k}, at::kBool));
      if (x.grad().defined()) out.dx[tokens[i]].copy_(x.grad()[row]);
    }
    if (router.weight().has_grad_buffer() && settings.records_graph) out.dweight += router.weight().grad();
    out.capacity = routing.capacity;
    if (!settings.has_records) return;
    const ExpertRecord& record = forward.expert_records->at(5);
    out.counts += record.counts;
    EXPECT_EQ(record.num_dropped.defined(), routing.capacity > 0);
    if (record.num_dropped.defined()) out.num_dropped += record.num_dropped.item<int64_t>();
    const auto agree = [&](double& value, const at::Tensor& tensor) {
      const double here = tensor.defined() ? tensor.item<double>() : std::nan("");
      EXPECT_TRUE(!tensor.defined() || (!tensor.requires_grad() && tensor.scalar_type() == out.weights.scalar_type()));
      if (!is_first) {
        EXPECT_EQ(std::isnan(here) ? 0 : here, std::isnan(value) ? 0 : value);
      }
      value = here;
    };
    agree(out.balance_loss, record.balance_loss);
    agree(out.z_loss, record.z_loss);
    is_first = false;
  });
  return out;
}

inline void expect_same(const RouterOutcome& actual, const RouterOutcome& expected, double tolerance,
                        const std::string& what) {
  const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
    EXPECT_TENSOR_NEAR(a, b, {.abs = tolerance, .rel_to_max = tolerance, .what = what + ", " + name});
  };
  EXPECT_TENSOR_NEAR(actual.experts, expected.experts, {.what = what + ", experts"});
  near(actual.weights, expected.weights, "weights");
  EXPECT_TENSOR_NEAR(actual.keep, expected.keep, {.what = what + ", keep"});
  EXPECT_TENSOR_NEAR(actual.counts, expected.counts, {.what = what + ", counts"});
  EXPECT_EQ(actual.capacity, expected.capacity) << what;
  EXPECT_EQ(actual.num_dropped, expected.num_dropped) << what;
  const auto near_or_off = [&](double a, double b, const char* name) {
    EXPECT_EQ(std::isnan(a), std::isnan(b)) << what << ", " << name;
    if (!std::isnan(b)) {
      EXPECT_NEAR(a, b, tolerance * (1 + std::abs(b))) << what << ", " << name;
    }
  };
  near_or_off(actual.balance_loss, expected.balance_loss, "balance_loss");
  near_or_off(actual.z_loss, expected.z_loss, "z_loss");
  near(actual.dx, expected.dx, "dx");
  near(actual.dweight, expected.dweight, "dweight");
}

}  // namespace megalith::router_test
