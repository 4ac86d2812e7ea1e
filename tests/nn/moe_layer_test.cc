// A layer with experts equals the loop over tokens and experts, and itself on one rank: output and all gradients, on
// every layout, with either dispatcher, padded or not, computed again or not.
#include "nn/moe_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "comm/sequence_shard.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/expert_tools.h"
#include "support/kept_bytes.h"
#include "support/layer_options.h"

namespace megalith {
namespace {

using namespace test;

constexpr const char* kMoeName = "model.layers.3.mlp";
constexpr int64_t kMoeHidden = 6;
// Quick GELU selects gpt-oss's form, which has all experts in one tensor.
MoeSite moe_site(const LayerOptions& options) {
  MoeSite site;
  if (options.quick_geglu) {
    site.names = {.stacked_gate_up = "gate_up_proj", .stacked_down = "down_proj", .are_interleaved = true};
  }
  return site;
}

LayerOptions moe_options() {
  LayerOptions options = plain_layer_options(kMoeHidden);
  options.moe_ffn_hidden_size = options.num_experts = 8;
  options.moe_router_topk = 2;
  options.moe_router_load_balancing_type = RouterBalancing::kNone;
  return options;
}

void set_dispatcher(LayerOptions& options, DispatcherKind kind) {
  options.moe_token_dispatcher_type = kind == DispatcherKind::kAllToAll ? "alltoall" : "allgather";
  ASSERT_EQ(options.dispatcher(), kind);
}

struct MoeVariant {
  std::string name;
  LayerOptions options;
};

std::vector<MoeVariant> every_moe_variant() {
  std::vector<MoeVariant> all;
  const auto add = [&](const std::string& name) -> LayerOptions& {
    return all.emplace_back(MoeVariant{name, moe_options()}).options;
  };
  add("softmax");
  LayerOptions& shared = add("softmax, shared expert");
  shared.moe_shared_expert_intermediate_size = 4;
  LayerOptions& sigmoid = add("sigmoid, plain experts");
  sigmoid.moe_router_score_function = RouterScore::kSigmoid;
  sigmoid.moe_router_topk_scaling_factor = 1.7;
  sigmoid.swiglu = false;  // without biases GELU is computed by the error function
  sigmoid.moe_shared_expert_intermediate_size = 4;
  LayerOptions& biases = add("biases, shared expert");
  biases.add_bias_linear = true;
  biases.moe_shared_expert_intermediate_size = 4;
  LayerOptions& stacks = add("stacks with biases");
  stacks.add_bias_linear = stacks.quick_geglu = true;
  stacks.swiglu = false;
  stacks.glu_linear_offset = 1;
  stacks.activation_func_clamp_value = 0.5;
  LayerOptions& balanced = add("objectives");
  balanced.moe_router_load_balancing_type = RouterBalancing::kAuxLoss;
  balanced.moe_aux_loss_coeff = 0.3;
  balanced.moe_z_loss_coeff = 0.1;
  balanced.moe_shared_expert_intermediate_size = 4;
  balanced.moe_shared_expert_overlap = true;
  LayerOptions& dropped = add("capacity");
  dropped.moe_expert_capacity_factor = 0.75;
  LayerOptions& padded = add("padded to the capacity");
  padded.moe_expert_capacity_factor = 0.75;
  padded.moe_pad_expert_input_to_capacity = true;
  return all;
}

// The microbatches of a step, (m, b, s, h); rank d of dp takes d, d + dp, …
struct MoeProblem {
  int64_t m = 4, b = 2, s = 8;
  at::Tensor draw(uint64_t seed) const {
    at::manual_seed(seed);
    return at::randn({m, b, s, kMoeHidden}, at::kDouble);
  }
};

struct MoeRun {
  Mesh mesh = Mesh::single();
  bool is_sequence_parallel = false;
  SelectiveRecompute recompute = {};
  LayerOptions options = moe_options();
  bool computes_input = false;  // the layer is told to keep its input as a way to compute it again
};

// Each rank's part of y, dx and the gradients of the step's sum, by name; NaN where it holds nothing.
std::vector<TensorMap> run_moe(const MoeRun& run, const MoeProblem& problem, const TensorMap& parameters) {
  const at::Tensor all_x = problem.draw(1), all_dy = problem.draw(2);
  std::vector<TensorMap> of_ranks(static_cast<size_t>(run.mesh.world_size()));
  ThreadWorld(run.mesh.world_size()).run(run.mesh, [&](Groups& groups) {
    LayerContext context = expert_context(groups);
    context.is_sequence_parallel = run.is_sequence_parallel;
    context.recompute = run.recompute;
    MoeLayer layer(context, kMoeName, run.options, moe_site(run.options));
    load(layer, parameters);
    attach_gradients(layer);
    std::map<std::string, int> times_ready;
    layer.for_each_parameter([&](Parameter& parameter) {
      parameter.set_ready_hook([&](Parameter& ready) { ++times_ready[ready.name()]; });
    });

    const int cp = groups.cp->size(), tp = groups.tp->size();
    // This rank's rows of a microbatch (b, s, …).
    const auto mine = [&](const at::Tensor& whole) {
      at::Tensor rows = zigzag_shard(whole, 1, cp, groups.cp->rank()).flatten(0, 1);
      if (!run.is_sequence_parallel) return rows.clone();
      const int64_t part = rows.size(0) / tp;
      return rows.narrow(0, groups.tp->rank() * part, part).clone();
    };
    const at::Tensor numbers =
        at::arange(problem.m * problem.b * problem.s, at::kLong).view({problem.m, problem.b, problem.s});
    TensorMap& answer = of_ranks[static_cast<size_t>(groups.rank)];
    for (const char* name : {"y", "dx"}) answer[name] = at::full_like(all_x, std::nan("")).flatten(0, 2);
    for (int64_t m = groups.dp->rank(); m < problem.m; m += groups.dp->size()) {
      ForwardContext forward{.b = problem.b, .s = problem.s / cp};
      if (cp > 1) forward.row_length = problem.s;
      forward.objective_scale = 0.7;
      layer.for_each_parameter(
          [&](Parameter& parameter) { parameter.set_last_microbatch(m + groups.dp->size() >= problem.m); });
      const at::Tensor x = mine(all_x[m]).set_requires_grad(true);
      int num_restored = 0;
      Kept kept;
      if (run.computes_input) {
        kept = Kept::computed([&num_restored, kept = x.detach()] {
          ++num_restored;
          return kept;
        });
      }
      const at::Tensor y = layer.forward({x, kept}, forward);
      y.backward(mine(all_dy[m]));
      EXPECT_EQ(num_restored, run.recompute.moe && run.computes_input ? 1 : 0);
      const at::Tensor rows = mine(numbers[m]);
      answer["y"].index_copy_(0, rows, y.detach());
      answer["dx"].index_copy_(0, rows, x.grad());
    }
    for (const Parameter* parameter : layer.parameters()) EXPECT_EQ(times_ready[parameter->name()], 1);
    TensorMap gradients = summed_gradients(layer, groups);
    answer.merge(gradients);
  });
  return of_ranks;
}

TensorMap parameters_of_layer(const LayerOptions& options) {
  const Groups single = Groups::single();
  return golden_weights(MoeLayer(expert_context(single), kMoeName, options, moe_site(options)), at::kDouble);
}

// Without a capacity and objectives.
TensorMap naive_layer(const LayerOptions& options, const MoeProblem& problem, const TensorMap& parameters) {
  const TensorMap leaves = as_leaves(parameters);
  const std::string name = kMoeName;
  const at::Tensor x = problem.draw(1).flatten(0, 2).set_requires_grad(true);
  at::Tensor logits = x.mm(leaves.at(name + ".gate.weight").t());
  if (const auto bias = leaves.find(name + ".gate.bias"); bias != leaves.end()) logits = logits + bias->second;
  const auto [top, experts] = at::topk(logits, options.moe_router_topk, 1);  // both scores rise with the logit
  at::Tensor weights;
  if (options.moe_router_score_function == RouterScore::kSoftmax) {
    const at::Tensor powers = at::exp(top);
    weights = powers / powers.sum(1, /*keepdim=*/true);
  } else {
    const at::Tensor scores = 1 / (1 + at::exp(-top));
    weights = scores / scores.sum(1, /*keepdim=*/true);
  }
  weights = weights * options.moe_router_topk_scaling_factor.value_or(1);
  const ops::ExpertActivation activation = options.swiglu ? ops::ExpertActivation{ops::ActivationKind::kSilu, true}
                                                          : ops::ExpertActivation{ops::ActivationKind::kGelu, false};
  at::Tensor y = naive_mixture(x, experts, weights, {}, leaves, name, activation);
  if (options.shared_expert_size() > 0) {
    std::vector<at::Tensor> of_shared;
    for (int64_t i = 0; i < x.size(0); ++i) {
      of_shared.push_back(naive_expert(x[i], leaves, name + ".shared_experts.", activation));
    }
    y = y + at::stack(of_shared);
  }
  y.backward(problem.draw(2).flatten(0, 2));
  TensorMap answer = gradients_of_leaves(leaves);
  answer["y"] = y.detach();
  answer["dx"] = x.grad();
  return answer;
}

struct MoeLayout {
  std::string name;
  Mesh mesh;
};
std::vector<MoeLayout> every_moe_layout() {
  return {{"ep2", Mesh({.dp = 2, .ep = 2})},
          {"ep4", Mesh({.dp = 4, .ep = 4})},
          {"ep2 etp2", Mesh({.dp = 4, .etp = 2, .ep = 2})},
          {"tp2", Mesh({.tp = 2})},
          {"tp2 ep2", Mesh({.tp = 2, .ep = 2})},
          {"tp2 etp2", Mesh({.tp = 2, .etp = 2})},
          {"tp2 dp2 etp2", Mesh({.tp = 2, .dp = 2, .etp = 2})},
          {"tp2 dp2 etp2 ep2", Mesh({.tp = 2, .dp = 2, .etp = 2, .ep = 2})},
          {"tp2 cp2 ep4", Mesh({.tp = 2, .cp = 2, .ep = 4})},
          {"cp2 ep2", Mesh({.cp = 2, .ep = 2})},
          {"cp2 dp2 ep2", Mesh({.cp = 2, .dp = 2, .ep = 2})},
          {"dp4 ep2", Mesh({.dp = 4, .ep = 2})}};
}

TEST(MoeLayer, EqualsTheLoopOverTokensAndExperts) {
  const MoeProblem problem;
  for (const MoeVariant& variant : every_moe_variant()) {
    if (variant.options.moe_expert_capacity_factor || variant.options.moe_aux_loss_coeff != 0) continue;
    if (variant.options.quick_geglu) continue;  // tests/models has it against the formula
    const TensorMap parameters = parameters_of_layer(variant.options);
    expect_held(run_moe({.options = variant.options}, problem, parameters),
                naive_layer(variant.options, problem, parameters), variant.name);
  }
}

TEST(MoeLayer, EveryLayoutEqualsOneRank) {
  const MoeProblem problem;
  for (MoeVariant variant : every_moe_variant()) {
    const TensorMap parameters = parameters_of_layer(variant.options);
    const TensorMap expected = run_moe({.options = variant.options}, problem, parameters)[0];
    for (const auto& [name, mesh] : every_moe_layout()) {
      for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
        set_dispatcher(variant.options, kind);
        for (const bool is_sequence_parallel : {false, true}) {
          if (is_sequence_parallel && mesh.size(Axis::kTp) == 1) continue;
          expect_held(run_moe({.mesh = mesh, .is_sequence_parallel = is_sequence_parallel, .options = variant.options},
                              problem, parameters),
                      expected,
                      fmt::format("{}, {}{}, {}", variant.name, name, is_sequence_parallel ? " sp" : "",
                                  kind == DispatcherKind::kAllToAll ? "all-to-all" : "all-gather"));
        }
      }
    }
  }
}

TEST(MoeLayer, TokensThatTheRanksCannotShareEvenlyArePaddedHere) {
  const MoeProblem problem{.m = 2, .b = 1, .s = 5};
  for (MoeVariant variant : every_moe_variant()) {
    const TensorMap parameters = parameters_of_layer(variant.options);
    const TensorMap expected = run_moe({.options = variant.options}, problem, parameters)[0];
    for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
      set_dispatcher(variant.options, kind);
      for (const Mesh& mesh : {Mesh({.tp = 2}), Mesh({.tp = 2, .ep = 2}), Mesh({.tp = 4, .etp = 2, .ep = 2})}) {
        expect_held(run_moe({.mesh = mesh, .options = variant.options}, problem, parameters), expected,
                    fmt::format("{}, tp {}", variant.name, mesh.size(Axis::kTp)));
      }
    }
  }
}

TEST(MoeLayer, OneTokenOfGenerationEqualsOneRank) {
  const at::Tensor x = at::randn({1, kMoeHidden}, at::kDouble);
  LayerOptions options = moe_options();
  options.moe_shared_expert_intermediate_size = 4;
  const TensorMap parameters = parameters_of_layer(options);
  const auto generate = [&](Groups& groups) {
    const at::NoGradGuard no_grad;
    MoeLayer layer(expert_context(groups), kMoeName, options, moe_site(options));
    load(layer, parameters);
    return layer.forward(x, {.b = 1, .s = 1, .is_training = false});
  };
  Groups single = Groups::single();
  const at::Tensor expected = generate(single);
  for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
    set_dispatcher(options, kind);
    for (const Mesh& mesh : {Mesh({.tp = 2, .ep = 2}), Mesh({.tp = 2, .etp = 2}), Mesh({.dp = 2, .ep = 2})}) {
      ThreadWorld(2).run(mesh, [&](Groups& groups) {
        EXPECT_TENSOR_NEAR(generate(groups), expected, {.abs = 1e-13, .what = "one token"});
      });
    }
  }
}

void expect_same_bits(const std::vector<TensorMap>& actual, const std::vector<TensorMap>& expected,
                      const std::string& what) {
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    for (const auto& [name, tensor] : expected[rank]) {
      const at::Tensor other = actual[rank].at(name);
      EXPECT_TRUE(at::equal(other.nan_to_num(-1), tensor.nan_to_num(-1))) << what << ", rank " << rank << ", " << name;
    }
  }
}

std::vector<Mesh> some_moe_meshes() {
  return {Mesh::single(), Mesh({.dp = 2, .ep = 2}), Mesh({.tp = 2, .dp = 2, .etp = 2, .ep = 2})};
}

TEST(MoeLayer, OverlapChangesNothing) {
  const MoeProblem problem;
  LayerOptions options = moe_options();
  options.moe_shared_expert_intermediate_size = 4;
  const TensorMap parameters = parameters_of_layer(options);
  for (const DispatcherKind kind : {DispatcherKind::kAllToAll, DispatcherKind::kAllGather}) {
    for (const Mesh& mesh : some_moe_meshes()) {
      set_dispatcher(options, kind);
      options.moe_shared_expert_overlap = false;
      const auto plain = run_moe({.mesh = mesh, .options = options}, problem, parameters);
      options.moe_shared_expert_overlap = true;
      const auto overlapped = run_moe({.mesh = mesh, .options = options}, problem, parameters);
      for (size_t rank = 0; rank < plain.size(); ++rank) {
        for (const auto& [name, tensor] : plain[rank]) {
          // The two gradients of x are added in another order.
          EXPECT_TENSOR_NEAR(overlapped[rank].at(name), tensor, {.abs = 1e-14, .rel_to_max = 1e-14, .what = name});
        }
      }
    }
  }
}

TEST(MoeLayer, PaddingToTheCapacityChangesNothing) {
  const MoeProblem problem;
  for (const double factor : {0.75, 1.0, 4.0}) {
    LayerOptions options = moe_options();
    options.moe_expert_capacity_factor = factor;
    const TensorMap parameters = parameters_of_layer(options);
    for (const Mesh& mesh : some_moe_meshes()) {
      const auto plain = run_moe({.mesh = mesh, .options = options}, problem, parameters);
      LayerOptions padded = options;
      padded.moe_pad_expert_input_to_capacity = true;
      const auto filled = run_moe({.mesh = mesh, .options = padded}, problem, parameters);
      for (size_t rank = 0; rank < plain.size(); ++rank) {
        for (const auto& [name, tensor] : plain[rank]) {
          EXPECT_TENSOR_NEAR(filled[rank].at(name), tensor, {.abs = 1e-13, .rel_to_max = 1e-13, .what = name});
        }
      }
    }
  }
}

TEST(MoeLayer, ComputedAgainItGivesTheSameBits) {
  const MoeProblem problem;
  for (const bool overlaps : {false, true}) {
    LayerOptions options = moe_options();
    options.moe_shared_expert_intermediate_size = 4;
    options.moe_shared_expert_overlap = overlaps;
    options.moe_router_load_balancing_type = RouterBalancing::kAuxLoss;
    options.moe_aux_loss_coeff = 0.3;
    set_dispatcher(options, DispatcherKind::kAllToAll);
    const TensorMap parameters = parameters_of_layer(options);
    for (const Mesh& mesh : some_moe_meshes()) {
      const auto plain = run_moe({.mesh = mesh, .options = options}, problem, parameters);
      const auto expect_equal = [&](const SelectiveRecompute& recompute, bool keeps_input, const std::string& what) {
        const MoeRun run{.mesh = mesh, .recompute = recompute, .options = options, .computes_input = !keeps_input};
        expect_same_bits(run_moe(run, problem, parameters), plain, what);
      };
      expect_equal({.moe = true}, true, "moe");
      expect_equal({.moe = true}, false, "moe, restored input");
      expect_equal({}, false, "input to be restored that is kept");
      expect_equal({.expert_activation = true}, true, "expert activation");
      expect_equal({.shared_experts = true}, true, "shared experts");
      expect_equal({.mlp_activation = true, .moe = true, .expert_activation = true, .shared_experts = true}, false,
                   "everything");
    }
  }
}

TEST(MoeLayer, RefusesPaddingThatHasNoOneSize) {
  const auto build = [](const Mesh& mesh, std::optional<double> factor, bool pads) {
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      LayerOptions options = moe_options();
      options.moe_expert_capacity_factor = factor;
      options.moe_pad_expert_input_to_capacity = pads;
      const MoeLayer layer(expert_context(groups), kMoeName, options, moe_site(options));
    });
  };
  const Mesh uneven({.cp = 3, .dp = 2, .ep = 2});
  EXPECT_THROW(build(uneven, 1.0, true), UserError);
  EXPECT_NO_THROW(build(uneven, 1.0, false));
  EXPECT_NO_THROW(build(Mesh({.cp = 2, .dp = 2, .ep = 4}), 1.0, true));
  EXPECT_THROW(build(Mesh::single(), std::nullopt, true), UserError);
}

TEST(MoeLayer, WorkIsSharedByTheRanks) {
  LayerOptions options = moe_options();
  options.moe_shared_expert_intermediate_size = 4;
  const Groups single = Groups::single();
  const CostShape whole{.b = 2, .s = 8};
  const double one = MoeLayer(expert_context(single), kMoeName, options, moe_site(options)).forward_flops(whole);
  // 16 tokens: the router 8 x 6, two experts of 3 x 8 x 6 each, the shared one of 3 x 4 x 6.
  EXPECT_EQ(one, 2 * 16 * (48 + 2 * 144 + 72));
  for (const auto& [name, mesh] : every_moe_layout()) {
    std::vector<double> flops(static_cast<size_t>(mesh.world_size()));
    ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
      CostShape shape = whole;
      shape.s /= groups.cp->size();
      flops[static_cast<size_t>(groups.rank)] =
          MoeLayer(expert_context(groups), kMoeName, options, moe_site(options)).forward_flops(shape);
    });
    double sum = 0;
    for (const double of_rank : flops) sum += of_rank;
    EXPECT_EQ(sum, one * mesh.size(Axis::kDp)) << name;
  }
}

TEST(MoeLayer, KeptBytesCountEveryTensorOnce) {
  LayerOptions options = moe_options();
  options.moe_shared_expert_intermediate_size = 4;
  const Groups single = Groups::single();
  const auto kept_of = [&](const SelectiveRecompute& recompute, bool has_shared, bool keeps_input = true) {
    LayerContext context = expert_context(single, Kernels::kFused);
    context.recompute = recompute;
    context.device = at::kMeta;
    LayerOptions changed = options;
    changed.moe_shared_expert_intermediate_size = has_shared ? 4 : 0;
    MoeLayer layer(context, kMoeName, changed, moe_site(options));
    return kept_bytes({16, kMoeHidden}, at::kDouble, [&](const at::Tensor& x) {
      const Kept elsewhere = Kept::computed([]() -> at::Tensor { return {}; });
      return layer.forward({x, keeps_input ? Kept() : elsewhere}, {.b = 2, .s = 8});
    });
  };
  const int64_t input = 16 * 6 * 8, of_shared = 16 * (2 * 4 + 4) * 8;
  const int64_t rows = 32 * 6 * 8, gate_up = 32 * 16 * 8, product = 32 * 8 * 8, weights = 32 * 8, maps = 2 * 32 * 8;
  const int64_t of_experts = rows + gate_up + product + weights + maps;
  // Beside these the router keeps its logits, and which experts were chosen.
  const int64_t of_router = 16 * 8 * 8 + 32 * 8;
  const int64_t offsets = 9 * 8;  // rows before each of eight experts
  const int64_t plain = kept_of({}, true);
  EXPECT_EQ(plain, input + of_shared + of_experts + of_router + offsets);
  EXPECT_EQ(kept_of({}, true, /*keeps_input=*/false), plain);  // kept all the same
  EXPECT_EQ(kept_of({}, false), input + of_experts + of_router + offsets);
  EXPECT_EQ(kept_of({.expert_activation = true}, true), plain - product);
  EXPECT_EQ(kept_of({.shared_experts = true}, true), plain - of_shared);
  EXPECT_EQ(kept_of({.moe = true}, true), input);
  EXPECT_EQ(kept_of({.moe = true}, true, /*keeps_input=*/false), 0);
}

}  // namespace
}  // namespace megalith
