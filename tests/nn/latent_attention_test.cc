// Latent attention against its formulas in ATen's operators, and in every layout against one rank.
#include "nn/latent_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "comm/sequence_shard.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "device/memory.h"
#include "nn/recompute.h"
#include "support/kept_bytes.h"
#include "support/layer_options.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

constexpr int64_t kLatentBatch = 2, kLatentLength = 16;

// Sizes that differ from one another, so that no two can be taken for each other.
LayerOptions latent_options(int64_t q_rank = 10) {
  LayerOptions options = test::plain_layer_options(12);
  options.multi_latent_attention = options.qk_layernorm = true;
  options.num_attention_heads = 4;
  if (q_rank > 0) options.q_lora_rank = q_rank;
  options.kv_lora_rank = 7;
  options.qk_head_dim = 5;
  options.qk_pos_emb_head_dim = 6;
  options.v_head_dim = 3;
  options.rotary_base = 50;
  options.rotary_scaling_factor = 4;
  options.mscale = 0;
  options.mscale_all_dim = 1;  // scores are multiplied by (0.1 ln 4 + 1)^2
  return options;
}
constexpr LatentAttentionSite kLatentSite{.layer = 1};

RotaryAngles latent_angles(const LayerOptions& options, const at::Tensor& position_ids) {
  return compute_rotary_angles(position_ids,
                               rotary_inverse_frequencies(options.qk_pos_emb_head_dim, options.rotary_base, options),
                               at::kDouble, rotary_multiplier(options));
}

at::Tensor latent_positions() {
  return at::arange(kLatentLength, at::kLong).unsqueeze(0).expand({kLatentBatch, kLatentLength});
}
at::Tensor latent_row_ids() {
  return at::tensor({int64_t{5}, int64_t{2}}, at::kLong).unsqueeze(1) * kLatentLength + latent_positions();
}

// (b s, hidden)
at::Tensor latent_values(double phase, int64_t hidden = 12) {
  return at::sin(at::arange(kLatentBatch * kLatentLength * hidden, at::kDouble) * 0.37 + phase)
      .view({kLatentBatch * kLatentLength, hidden});
}

LayerContext latent_context(const Groups& groups, Kernels kernels = Kernels::kFused) {
  return {.groups = &groups, .dtype = at::kDouble, .kernels = kernels};
}

struct LatentOutcome {
  at::Tensor y, dx;
  test::TensorMap gradients;
};

void expect_latent_near(const LatentOutcome& actual, const LatentOutcome& expected, double tolerance,
                        const std::string& what) {
  EXPECT_LT(test::relative_difference(actual.y, expected.y), tolerance) << what << ": y";
  EXPECT_LT(test::relative_difference(actual.dx, expected.dx), tolerance) << what << ": dx";
  EXPECT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LT(test::relative_difference(actual.gradients.at(name), gradient), tolerance) << what << ": " << name;
  }
}

// ---- The formulas ----

at::Tensor naive_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / at::sqrt(x.square().mean(-1, true) + eps) * weight;
}

// x (b, s, heads, r), channels (2i, 2i + 1) or (i, i + r/2) being a complex number.
at::Tensor naive_rotation(const at::Tensor& x, const RotaryAngles& angles, bool is_interleaved) {
  const at::Tensor paired = is_interleaved ? x.unflatten(-1, {-1, 2}) : x.unflatten(-1, {2, -1}).transpose(-1, -2);
  const at::Tensor turn = at::complex(angles.cos, angles.sin).unsqueeze(2);
  const at::Tensor turned = at::view_as_real(at::view_as_complex(paired.contiguous()) * turn);
  return (is_interleaved ? turned : turned.transpose(-1, -2)).flatten(-2);
}

at::Tensor naive_latent_attention(const at::Tensor& x, test::TensorMap& weights, const LayerOptions& options,
                                  const RotaryAngles& angles, bool is_interleaved = true) {
  const int64_t b = kLatentBatch, s = kLatentLength, n = options.num_attention_heads, nope = options.qk_head_dim,
                rope = options.qk_pos_emb_head_dim;
  const auto weight = [&](const std::string& name) { return weights.at("a." + name + ".weight"); };
  const auto norm = [&](const at::Tensor& latent, const char* name) {
    return options.qk_layernorm ? naive_norm(latent, weight(name), 1e-6) : latent;
  };
  const at::Tensor q =
      (!options.q_lora_rank ? x.mm(weight("q_proj").t())
                            : norm(x.mm(weight("q_a_proj").t()), "q_a_layernorm").mm(weight("q_b_proj").t()))
          .view({b, s, n, nope + rope});
  const at::Tensor latent = x.mm(weight("kv_a_proj_with_mqa").t());
  const at::Tensor kv = norm(latent.narrow(1, 0, options.kv_lora_rank), "kv_a_layernorm")
                            .mm(weight("kv_b_proj").t())
                            .view({b, s, n, nope + options.v_head_dim});
  const auto rotated = [&](const at::Tensor& part) { return naive_rotation(part, angles, is_interleaved); };
  const at::Tensor key_rope = rotated(latent.narrow(1, options.kv_lora_rank, rope).reshape({b, s, 1, rope}));
  const at::Tensor query = at::cat({q.narrow(3, 0, nope), rotated(q.narrow(3, nope, rope))}, 3).transpose(1, 2);
  const at::Tensor key = at::cat({kv.narrow(3, 0, nope), key_rope.expand({b, s, n, rope})}, 3).transpose(1, 2);
  const at::Tensor value = kv.narrow(3, nope, options.v_head_dim).transpose(1, 2);
  const double scale = std::pow(0.1 * std::log(4.0) + 1, 2) / std::sqrt(static_cast<double>(nope + rope));
  const at::Tensor is_later = at::ones({s, s}, at::kBool).triu(1);
  const at::Tensor scores =
      (at::matmul(query, key.transpose(2, 3)) * scale).masked_fill(is_later, -std::numeric_limits<double>::infinity());
  return at::matmul(scores.softmax(-1), value).transpose(1, 2).reshape({b * s, -1}).mm(weight("o_proj").t());
}

LatentOutcome naive_outcome(const LayerOptions& options, bool is_interleaved) {
  const Groups groups = Groups::single();
  test::TensorMap weights =
      test::golden_weights(LatentAttention(latent_context(groups), "a", options, kLatentSite), at::kDouble);
  for (auto& [name, weight] : weights) weight.set_requires_grad(true);
  const at::Tensor x = latent_values(0.3).set_requires_grad(true);
  const at::Tensor y =
      naive_latent_attention(x, weights, options, latent_angles(options, latent_positions()), is_interleaved);
  y.backward(latent_values(1.1));
  LatentOutcome outcome{y.detach(), x.grad(), {}};
  for (const auto& [name, weight] : weights) outcome.gradients[name] = weight.grad();
  return outcome;
}

// ---- The layer on one rank ----

struct LatentRun {
  SelectiveRecompute recompute;
  Kernels kernels = Kernels::kFused;
  double dropout = 0;
  LatentAttentionSite site = kLatentSite;
  bool keeps_input = true;
  bool is_recomputed_whole = false;
  std::string frozen;      // a part of the names of parameters
  int num_restored = 0;    // set by the run
  int num_attentions = 0;  // attention_forward calls, set by the run
  int64_t kept_bytes = 0;  // between the passes, set by the run
  int64_t kept_bytes_on_meta = 0;
};

// Calls of attention's forward operator on this thread while it lives.
class LatentAttentionCounter {
 public:
  LatentAttentionCounter() {
    count() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          if (std::string_view(function.name()) == "megalith::attention_forward") ++count();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~LatentAttentionCounter() { at::removeCallback(handle_); }
  static int& count() {
    thread_local int value = 0;
    return value;
  }

 private:
  at::CallbackHandle handle_;
};

// Bytes that the same layer keeps on the meta device.
int64_t kept_latent_bytes(const LayerOptions& options, const LatentRun& run, ForwardContext forward,
                          const RotaryAngles& angles) {
  const Groups groups = Groups::single();
  LayerContext context = latent_context(groups, run.kernels);
  context.recompute = run.recompute;
  context.device = at::kMeta;
  LatentAttention layer(context, "a", options, run.site);
  forward.row_ids = forward.row_ids.to(at::kMeta);
  const RotaryAngles shapes{angles.cos.to(at::kMeta), angles.sin.to(at::kMeta)};
  return test::kept_bytes({kLatentBatch * kLatentLength, options.hidden_size}, at::kDouble, [&](const at::Tensor& x) {
    const Kept elsewhere = Kept::computed([]() -> at::Tensor { return {}; });
    return layer.forward({x, run.keeps_input ? Kept() : elsewhere}, forward, shapes);
  });
}

LatentOutcome run_latent(LayerOptions options, LatentRun& run) {
  const Groups groups = Groups::single();
  LayerContext context = latent_context(groups, run.kernels);
  context.recompute = run.recompute;
  options.attention_dropout = run.dropout;
  LatentAttention layer(context, "a", options, run.site);
  test::load(layer, test::golden_weights(layer, at::kDouble));
  layer.for_each_parameter([&](Parameter& parameter) {
    if (!run.frozen.empty() && parameter.name().find(run.frozen) != std::string::npos) parameter.set_trainable(false);
  });
  test::attach_gradients(layer);
  ForwardContext forward{.b = kLatentBatch, .s = kLatentLength, .row_ids = latent_row_ids()};
  const RotaryAngles angles = latent_angles(options, latent_positions());
  at::Tensor x = latent_values(0.3).set_requires_grad(true);
  const Kept restored = Kept::computed([&run, kept = x.detach()] {
    ++run.num_restored;
    return kept.clone();
  });
  const LatentAttentionCounter counter;
  manage_cpu_memory();
  const int64_t before = memory_stats(at::kCPU).allocated_bytes;
  const BlockBody body = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{layer.forward({in[0], run.keeps_input ? Kept() : restored}, forward, angles)};
  };
  const at::Tensor y = run.is_recomputed_whole ? recomputed(body, {x}, layer.parameters())[0] : body({x})[0];
  // The layer does not keep the output; the input was there before.
  run.kept_bytes = memory_stats(at::kCPU).allocated_bytes - before - static_cast<int64_t>(y.nbytes()) +
                   (run.keeps_input ? static_cast<int64_t>(x.nbytes()) : 0);
  y.backward(latent_values(1.1));
  run.num_attentions = LatentAttentionCounter::count();
  run.kept_bytes_on_meta = kept_latent_bytes(options, run, forward, angles);
  return {y.detach(), x.grad(), test::gradients_of(layer)};
}
LatentOutcome run_latent(const LayerOptions& options) {
  LatentRun run;
  return run_latent(options, run);
}

TEST(LatentAttention, ValuesAndGradientsAreThoseOfTheFormulas) {
  for (const int64_t q_rank : {0, 10}) {
    for (const bool has_norms : {false, true}) {
      for (const bool is_interleaved : {false, true}) {
        LayerOptions options = latent_options(q_rank);
        options.qk_layernorm = has_norms;
        const LatentOutcome expected = naive_outcome(options, is_interleaved);
        EXPECT_EQ(expected.gradients.size(), 4u + (q_rank > 0) + has_norms * (1u + (q_rank > 0)));
        for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
          LatentRun run{.kernels = kernels, .site = {.is_rotary_interleaved = is_interleaved, .layer = 1}};
          expect_latent_near(run_latent(options, run), expected, 1e-12,
                             fmt::format("q rank {}, norms {}, interleaved {}", q_rank, has_norms, is_interleaved));
        }
      }
    }
  }
}

TEST(LatentAttention, WithoutAnglesNothingIsRotated) {
  const Groups groups = Groups::single();
  LayerOptions options = latent_options();
  LatentAttention layer(latent_context(groups), "a", options, kLatentSite);
  test::TensorMap weights = test::golden_weights(layer, at::kDouble);
  test::load(layer, weights);
  test::attach_gradients(layer);
  const at::Tensor zero = at::zeros({1, kLatentLength, options.qk_pos_emb_head_dim / 2}, at::kDouble);
  const at::Tensor x = latent_values(0.3).set_requires_grad(true), x_naive = latent_values(0.3).set_requires_grad(true);
  const at::Tensor y = layer.forward(x, {.b = kLatentBatch, .s = kLatentLength}, {});
  const at::Tensor expected = naive_latent_attention(x_naive, weights, options, {zero.cos(), zero});
  y.backward(latent_values(1.1));
  expected.backward(latent_values(1.1));
  EXPECT_LT(test::relative_difference(y.detach(), expected.detach()), 1e-12);
  EXPECT_LT(test::relative_difference(x.grad(), x_naive.grad()), 1e-12);
}

// ---- Recomputation ----

TEST(LatentAttention, RecomputationGivesTheSameBitsAndKeepsWhatIsMeasured) {
  for (const int64_t q_rank : {0, 10}) {
    for (const double dropout : {0.0, 0.25}) {
      LatentRun plain{.dropout = dropout};
      const LatentOutcome expected = run_latent(latent_options(q_rank), plain);
      EXPECT_EQ(plain.num_attentions, 1);
      struct Variant {
        bool core, up;
        int num_attentions;
      };
      for (const Variant variant : {Variant{false, false, 1}, {true, false, 2}, {false, true, 1}, {true, true, 2}}) {
        for (const bool keeps_input : {true, false}) {
          LatentRun run{.recompute = {.core_attention = variant.core, .latent_up = variant.up},
                        .dropout = dropout,
                        .keeps_input = keeps_input};
          const std::string what = fmt::format("q rank {}, dropout {}, core {}, up {}, input {}", q_rank, dropout,
                                               variant.core, variant.up, keeps_input);
          const LatentOutcome outcome = run_latent(latent_options(q_rank), run);
          expect_latent_near(outcome, expected, 1e-300, what);  // to the bit
          EXPECT_EQ(run.num_attentions, variant.num_attentions) << what;
          EXPECT_EQ(run.num_restored, keeps_input ? 0 : 1) << what;
          // The allocator makes each of a dozen tensors up to 32 bytes larger, depending on its free blocks.
          EXPECT_NEAR(static_cast<double>(run.kept_bytes), static_cast<double>(run.kept_bytes_on_meta), 400) << what;
          if (variant.core || variant.up) {
            EXPECT_LT(run.kept_bytes, plain.kept_bytes) << what;
          }
        }
      }
    }
  }
}

TEST(LatentAttention, RecomputedAsAWholeGivesTheSameBits) {
  const LatentOutcome expected = run_latent(latent_options());
  for (const bool core : {false, true}) {
    for (const bool up : {false, true}) {
      LatentRun run{.recompute = {.core_attention = core, .latent_up = up}, .is_recomputed_whole = true};
      expect_latent_near(run_latent(latent_options(), run), expected, 1e-300, fmt::format("core {}, up {}", core, up));
    }
  }
}

TEST(LatentAttention, FrozenParametersChangeNoOtherGradient) {
  const LatentOutcome expected = run_latent(latent_options());
  for (const auto& [frozen, gradient] : expected.gradients) {
    for (const bool core : {false, true}) {
      for (const bool up : {false, true}) {
        LatentRun run{.recompute = {.core_attention = core, .latent_up = up}, .keeps_input = false, .frozen = frozen};
        LatentOutcome outcome = run_latent(latent_options(), run);
        EXPECT_FALSE(outcome.gradients.contains(frozen));
        outcome.gradients[frozen] = gradient;
        expect_latent_near(outcome, expected, 1e-300, fmt::format("{} frozen, core {}, up {}", frozen, core, up));
        EXPECT_EQ(run.num_restored, 1) << frozen;
      }
    }
  }
}

// ---- Layouts ----

struct LatentLayout {
  int tp = 1, cp = 1, ulysses = 1;
  bool is_sequence_parallel = false;
  ContextParallelKind kind = ContextParallelKind::kP2p;
  std::string text() const {
    return fmt::format("tp {}, cp {} {} ({} together), sp {}", tp, cp, name_of(kind), ulysses, is_sequence_parallel);
  }
};

// Results of a layout's ranks, joined.
LatentOutcome run_latent_layout(LayerOptions options, const LatentLayout& layout, const LatentRun& run) {
  struct Part {
    at::Tensor y, dx;  // (b, s of the rank, hidden)
    test::TensorMap gradients;
  };
  options.attention_dropout = run.dropout;
  std::vector<Part> parts(static_cast<size_t>(layout.tp * layout.cp));
  std::map<std::string, bool> is_partial_over_tp;
  const Mesh mesh({.tp = layout.tp, .cp = layout.cp, .cp_ulysses = layout.ulysses});
  const auto at_rank = [&](int tp, int cp) -> Part& { return parts[static_cast<size_t>(mesh.rank_at(tp, cp, 0, 0))]; };
  const Groups one = Groups::single();
  const test::TensorMap weights =
      test::golden_weights(LatentAttention(latent_context(one), "a", options, kLatentSite), at::kDouble);
  ThreadWorld(layout.tp * layout.cp).run(mesh, [&](Groups& groups) {
    LayerContext context = latent_context(groups);
    context.is_sequence_parallel = layout.is_sequence_parallel;
    context.recompute = run.recompute;
    context.context_parallel_kinds = {layout.kind};
    LatentAttention layer(context, "a", options, run.site);
    test::load(layer, weights);
    test::attach_gradients(layer);
    const int tp_rank = groups.tp->rank(), cp_rank = groups.cp->rank();
    const auto shard = [&](const at::Tensor& of_sequences) {
      return zigzag_shard(of_sequences, 1, layout.cp, cp_rank);
    };
    const int64_t s = kLatentLength / layout.cp;
    ForwardContext forward{.b = kLatentBatch, .s = s, .row_ids = shard(latent_row_ids())};
    if (layout.cp > 1) {
      forward.row_length = kLatentLength;
      forward.mask.query_positions = zigzag_indices(kLatentLength, layout.cp, cp_rank);
    }
    const auto of_rank = [&](const at::Tensor& whole) {
      const at::Tensor tokens = shard(whole.view({kLatentBatch, kLatentLength, -1})).reshape({kLatentBatch * s, -1});
      return layout.is_sequence_parallel ? tokens.chunk(layout.tp)[static_cast<size_t>(tp_rank)].clone()
                                         : tokens.clone();
    };
    const at::Tensor x = of_rank(latent_values(0.3)).set_requires_grad(true);
    const at::Tensor y = layer.forward(x, forward, latent_angles(options, shard(latent_positions())));
    y.backward(of_rank(latent_values(1.1)));
    at_rank(tp_rank, cp_rank) = {y.detach(), x.grad(), test::gradients_of(layer)};
    if (groups.rank != 0) return;
    layer.for_each_parameter([&](Parameter& parameter) {
      is_partial_over_tp[parameter.name()] = parameter.placement().partial_axes.contains(Axis::kTp);
    });
  });
  const auto whole = [&](at::Tensor Part::*member) {
    std::vector<at::Tensor> of_cp;
    for (int cp = 0; cp < layout.cp; ++cp) {
      at::Tensor tokens = at_rank(0, cp).*member;
      for (int tp = 1; tp < layout.tp; ++tp) {
        const at::Tensor& other = at_rank(tp, cp).*member;
        if (layout.is_sequence_parallel)
          tokens = at::cat({tokens, other});
        else
          EXPECT_TRUE(at::equal(tokens, other)) << layout.text();  // every rank computes the same
      }
      of_cp.push_back(tokens.view({kLatentBatch, kLatentLength / layout.cp, -1}));
    }
    return layout.cp == 1 ? of_cp[0].flatten(0, 1) : zigzag_join(at::stack(of_cp)).flatten(0, 1);
  };
  LatentOutcome outcome{whole(&Part::y), whole(&Part::dx), {}};
  for (const auto& [name, is_partial] : is_partial_over_tp) {
    at::Tensor sum;
    for (int tp = 0; tp < layout.tp; ++tp) {
      at::Tensor of_tp = at_rank(tp, 0).gradients.at(name).clone();
      for (int cp = 1; cp < layout.cp; ++cp) of_tp += at_rank(tp, cp).gradients.at(name);
      if (!sum.defined()) {
        sum = of_tp;
      } else if (is_partial) {
        sum += of_tp;
      } else {
        // A slice each, or the same.
        const at::Tensor both = sum.isnan().logical_or(of_tp.isnan()).logical_not();
        EXPECT_TRUE(at::allclose(sum.masked_select(both), of_tp.masked_select(both), 1e-12, 1e-13)) << name;
        sum = at::where(sum.isnan(), of_tp, sum);
      }
    }
    outcome.gradients[name] = sum;
  }
  return outcome;
}

TEST(LatentAttention, EveryLayoutEqualsOneRank) {
  using Kind = ContextParallelKind;
  const LatentLayout layouts[] = {
      {.tp = 2},
      {.tp = 4},
      {.tp = 2, .is_sequence_parallel = true},
      {.tp = 4, .is_sequence_parallel = true},
      {.cp = 2},
      {.cp = 2, .kind = Kind::kAllGather},
      {.cp = 2, .kind = Kind::kAllToAll},
      {.cp = 4, .ulysses = 2, .kind = Kind::kAllToAllP2p},
      {.tp = 2, .cp = 2},
      {.tp = 2, .cp = 2, .is_sequence_parallel = true, .kind = Kind::kAllToAll},
      {.tp = 2, .cp = 2, .is_sequence_parallel = true, .kind = Kind::kAllGather},
  };
  for (const int64_t q_rank : {0, 10}) {
    for (const double dropout : {0.0, 0.25}) {
      LatentRun one{.dropout = dropout};
      const LatentOutcome expected = run_latent(latent_options(q_rank), one);
      for (const LatentLayout& layout : layouts) {
        for (const SelectiveRecompute& recompute :
             {SelectiveRecompute{}, SelectiveRecompute{.core_attention = true}, SelectiveRecompute{.latent_up = true},
              SelectiveRecompute{.core_attention = true, .latent_up = true}}) {
          if (dropout > 0 && recompute.core_attention != recompute.latent_up) continue;
          const LatentRun run{.recompute = recompute, .dropout = dropout};
          expect_latent_near(run_latent_layout(latent_options(q_rank), layout, run), expected, 1e-12,
                             fmt::format("q rank {}, dropout {}, core {}, up {}, {}", q_rank, dropout,
                                         recompute.core_attention, recompute.latent_up, layout.text()));
        }
      }
    }
  }
}

TEST(LatentAttention, RefusesHeadsThatDoNotDivide) {
  EXPECT_THROW(ThreadWorld(3).run(Mesh({.tp = 3}),
                                  [&](Groups& groups) {
                                    LatentAttention(latent_context(groups), "a", latent_options(), kLatentSite);
                                  }),
               UserError);
}

// ---- Generation ----

TEST(LatentAttention, KeysOfTheCacheEqualTheWholeSequence) {
  const Groups groups = Groups::single();
  const LayerOptions options = latent_options();
  LatentAttention layer(latent_context(groups), "a", options, kLatentSite);
  test::load(layer, test::golden_weights(layer, at::kDouble));
  const at::NoGradGuard no_grad;
  const at::Tensor x = latent_values(0.3);
  const at::Tensor expected =
      layer.forward(x, {.b = kLatentBatch, .s = kLatentLength}, latent_angles(options, latent_positions()))
          .view({kLatentBatch, kLatentLength, -1});
  KvCache cache{.capacity = kLatentLength};
  for (const int64_t count : {7, 1, 1, 5, 2}) {
    const int64_t begin = cache.length;
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(1, begin, count); };
    const at::Tensor y =
        layer.forward(part(x.view({kLatentBatch, kLatentLength, -1})).reshape({-1, options.hidden_size}),
                      {.b = kLatentBatch, .s = count, .is_training = false, .cache = &cache},
                      latent_angles(options, part(latent_positions())));
    cache.length += count;
    EXPECT_LT(test::relative_difference(y.view({kLatentBatch, count, -1}), part(expected)), 1e-12) << begin;
  }
  EXPECT_EQ(cache.length, kLatentLength);
  EXPECT_EQ(cache.slots.at(1).k.sizes(), (std::vector<int64_t>{kLatentBatch, kLatentLength, 4, 11}));
  EXPECT_EQ(cache.slots.at(1).v.sizes(), (std::vector<int64_t>{kLatentBatch, kLatentLength, 4, 3}));
}

}  // namespace
}  // namespace megalith
