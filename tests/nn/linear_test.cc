// Linear layers: what they compute, what they put into the gradient buffers, and what they leave out.
#include "nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/deferred_gradients.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

// Matrix products that ATen runs on this thread while it lives.
class ProductCounter {
 public:
  ProductCounter() {
    count() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          const std::string_view name = function.name();
          if (name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_out" || name == "aten::baddbmm" ||
              name == "aten::bmm")
            ++count();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductCounter() { at::removeCallback(handle_); }
  static int& count() {
    thread_local int value = 0;
    return value;
  }

 private:
  at::CallbackHandle handle_;
};

LayerContext context_of(const Groups& groups, bool is_sequence_parallel = false) {
  return {.groups = &groups,
          .dtype = at::kDouble,
          .kernels = Kernels::kReference,
          .is_sequence_parallel = is_sequence_parallel};
}

TEST(Linear, FusedPartsAreTheSeparateLayersSideBySide) {
  const Groups groups = Groups::single();
  Linear fused(context_of(groups), "qkv", 5, {{"q", 4}, {"k", 3}}, {.has_bias = true});
  const TensorMap weights = golden_weights(fused, at::kDouble);
  load(fused, weights);
  attach_gradients(fused);
  const at::Tensor x = at::randn({7, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = fused.forward(x);
  const at::Tensor q = at::linear(x.detach(), weights.at("q.weight"), weights.at("q.bias"));
  EXPECT_LT(relative_difference(y.narrow(1, 0, 4), q), 1e-14);
  const at::Tensor dy = at::randn({7, 7}, at::kDouble);
  y.backward(dy);
  const TensorMap gradients = gradients_of(fused);
  EXPECT_LT(relative_difference(gradients.at("q.weight"), dy.narrow(1, 0, 4).t().mm(x.detach())), 1e-13);
  EXPECT_LT(relative_difference(gradients.at("k.weight"), dy.narrow(1, 4, 3).t().mm(x.detach())), 1e-13);
  EXPECT_LT(relative_difference(gradients.at("k.bias"), dy.narrow(1, 4, 3).sum(0)), 1e-13);
  EXPECT_LT(relative_difference(x.grad(), dy.mm(at::cat({weights.at("q.weight"), weights.at("k.weight")}))), 1e-13);
  EXPECT_FALSE(fused.weight().value().grad().defined());  // autograd's own .grad is not used
}

TEST(Linear, MicrobatchesAccumulateAndExpandedGradientsAreTaken) {
  const Groups groups = Groups::single();
  Linear layer(context_of(groups), "w", 3, 2, {});
  layer.weight().initialise(1);
  attach_gradients(layer);
  at::Tensor expected = at::zeros({2, 3}, at::kDouble);
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    const at::Tensor x = at::randn({4, 3}, at::kDouble);
    layer.forward(x).sum().backward();  // dy is an expanded scalar
    expected += at::ones({2, 4}, at::kDouble).mm(x);
  }
  EXPECT_LT(relative_difference(layer.weight().grad(), expected), 1e-14);
}

TEST(Linear, NoProductIsSpentOnGradientsThatNobodyReads) {
  const Groups groups = Groups::single();
  const auto products_of_backward = [&](bool is_trainable, bool needs_dx) {
    Linear layer(context_of(groups), "w", 3, 2, {});
    layer.weight().initialise(1);
    layer.weight().set_trainable(is_trainable);
    attach_gradients(layer);
    const at::Tensor loss = layer.forward(at::randn({4, 3}, at::kDouble).set_requires_grad(needs_dx)).sum();
    const ProductCounter counter;
    loss.backward();
    return ProductCounter::count();
  };
  const int both = products_of_backward(true, true);
  EXPECT_EQ(both, 2);
  EXPECT_EQ(products_of_backward(false, true), 1);
  EXPECT_EQ(products_of_backward(true, false), 1);
}

TEST(Linear, RecordsNothingWhenNothingIsToBeDifferentiated) {
  const Groups groups = Groups::single();
  Linear layer(context_of(groups), "w", 3, 2, {});
  layer.weight().initialise(1);
  EXPECT_TRUE(layer.forward(at::randn({4, 3}, at::kDouble)).requires_grad());
  layer.weight().set_trainable(false);
  EXPECT_FALSE(layer.forward(at::randn({4, 3}, at::kDouble)).requires_grad());
}

TEST(Linear, TensorAndSequenceParallelPairsEqualOneRank) {
  const int64_t tokens = 12, hidden = 6;
  const auto make = [&](const LayerContext& context) {
    struct Pair : Module {
      Linear up, down;
      explicit Pair(const LayerContext& c)
          : up(c, "up", 6, {{"gate", 8}, {"up", 8}}, {.role = LinearRole::kColumn, .has_bias = true}),
            down(c, "down", 16, 6, {.role = LinearRole::kRow, .has_bias = true}) {
        register_module(up);
        register_module(down);
      }
    };
    return std::make_unique<Pair>(context);
  };
  // Between the two an elementwise function of gate and up that keeps the channels' order: two columns a channel, so
  // that a rank's slice of them is a slice of the whole.
  const auto run = [&](auto& pair, const at::Tensor& x) {
    const at::Tensor y = pair.up.forward(x);
    const int64_t half = y.size(1) / 2;
    const at::Tensor product = y.narrow(1, 0, half) * y.narrow(1, half, half);
    return pair.down.forward(
        at::cat({product, product.sin()}, 1).view({y.size(0), 2, half}).transpose(1, 2).reshape({y.size(0), -1}));
  };
  const at::Tensor x = at::randn({tokens, hidden}, at::kDouble), dy = at::randn({tokens, hidden}, at::kDouble);

  const Groups single = Groups::single();
  auto one = make(context_of(single));
  const TensorMap weights = golden_weights(*one, at::kDouble);
  load(*one, weights);
  attach_gradients(*one);
  const at::Tensor x_one = x.clone().set_requires_grad(true);
  const at::Tensor y_one = run(*one, x_one);
  y_one.backward(dy);
  const TensorMap expected = gradients_of(*one);

  for (const bool is_sequence_parallel : {false, true}) {
    const int tp = 2;
    std::vector<at::Tensor> y(tp), dx(tp);
    std::vector<TensorMap> gradients(tp);
    ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
      const auto rank = static_cast<size_t>(groups.tp->rank());
      auto pair = make(context_of(groups, is_sequence_parallel));
      load(*pair, weights);
      attach_gradients(*pair);
      const int64_t part = is_sequence_parallel ? tokens / tp : tokens,
                    first = is_sequence_parallel ? part * groups.tp->rank() : 0;
      const at::Tensor x_part = x.narrow(0, first, part).clone().set_requires_grad(true);
      y[rank] = run(*pair, x_part);
      y[rank].backward(dy.narrow(0, first, part));
      dx[rank] = x_part.grad();
      gradients[rank] = gradients_of(*pair);
    });
    const auto whole = [&](const std::vector<at::Tensor>& parts) {
      return is_sequence_parallel ? at::cat(parts) : parts[1];
    };
    EXPECT_LT(relative_difference(whole(y).detach(), y_one.detach()), 1e-13) << is_sequence_parallel;
    EXPECT_LT(relative_difference(whole(dx), x_one.grad()), 1e-13) << is_sequence_parallel;
    for (const auto& [name, gradient] : expected) {
      // Sharded tensors: each rank has its slice, NaN elsewhere. The row bias under sequence parallelism is a partial
      // sum.
      at::Tensor merged;
      if (name == "down.bias")
        merged = is_sequence_parallel ? gradients[0].at(name) + gradients[1].at(name) : gradients[1].at(name);
      else
        merged = at::where(gradients[0].at(name).isnan(), gradients[1].at(name), gradients[0].at(name));
      EXPECT_LT(relative_difference(merged, gradient), 1e-13) << name << " " << is_sequence_parallel;
    }
  }
}

// Canonical tensors that hold several parts and are kept as (in, out): GPT-2's c_attn under [query | key | value] heads
// of different widths, and a row layer.
struct TransposedPair : Module {
  Linear qkv, output;
  explicit TransposedPair(const LayerContext& c)
      : qkv(c, "qkv", 6, {{"c_attn", 8, 0, 16}, {"c_attn", 4, 8, 16}, {"c_attn", 4, 12, 16}},
            {.role = LinearRole::kColumn, .has_bias = true, .is_transposed = true}),
        output(c, "c_proj", 8, 6, {.role = LinearRole::kRow, .has_bias = true, .is_transposed = true}) {
    register_module(qkv);
    register_module(output);
  }
};

TEST(Linear, TransposedFusedTensorsAreTheWholeOnEveryLayout) {
  const Groups single = Groups::single();
  TransposedPair one(context_of(single));
  one.for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
  const TensorMap expected = values_of(one);
  EXPECT_EQ(expected.at("c_attn.weight").sizes(), (at::IntArrayRef{6, 16}));
  EXPECT_EQ(expected.at("c_attn.bias").sizes(), (at::IntArrayRef{16}));
  EXPECT_EQ(expected.at("c_proj.weight").sizes(), (at::IntArrayRef{8, 6}));
  for (const auto& [name, value] : expected) EXPECT_FALSE(value.isnan().any().item<bool>()) << name;
  EXPECT_EQ(one.num_parameters(), 6 * 16 + 16 + 8 * 6 + 6);
  // On one rank the local weight is the canonical one, turned.
  EXPECT_TRUE(at::equal(one.qkv.weight().data(), expected.at("c_attn.weight").t()));

  for (const int tp : {2, 4}) {
    std::vector<TensorMap> values(static_cast<size_t>(tp)), loaded(static_cast<size_t>(tp));
    std::vector<at::Tensor> weights(static_cast<size_t>(tp));
    ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
      const auto rank = static_cast<size_t>(groups.tp->rank());
      TransposedPair pair(context_of(groups));
      pair.for_each_parameter([](Parameter& parameter) { parameter.initialise(5); });
      values[rank] = values_of(pair);
      load(pair, golden_weights(one, at::kDouble));
      loaded[rank] = values_of(pair);
      weights[rank] = pair.qkv.weight().data().clone();
    });
    const auto expect_whole = [&](const std::vector<TensorMap>& parts, const TensorMap& whole) {
      for (const auto& [name, value] : whole) {
        at::Tensor merged = parts[0].at(name);
        for (const TensorMap& part : parts) merged = at::where(merged.isnan(), part.at(name), merged);
        EXPECT_TRUE(at::equal(merged, value)) << name << ", tp " << tp;
      }
    };
    expect_whole(values, expected);
    const TensorMap golden = golden_weights(one, at::kDouble);
    expect_whole(loaded, golden);
    // The second rank's heads of each part, in the parts' order.
    const at::Tensor c_attn = golden.at("c_attn.weight").t();
    const int64_t q = 8 / tp, kv = 4 / tp;
    EXPECT_TRUE(at::equal(
        weights[1], at::cat({c_attn.narrow(0, q, q), c_attn.narrow(0, 8 + kv, kv), c_attn.narrow(0, 12 + kv, kv)})));
  }
}

TEST(Linear, TransposedFusedTensorsComputeAndDifferentiateAsTheyStand) {
  const Groups groups = Groups::single();
  TransposedPair pair(context_of(groups));
  const TensorMap weights = golden_weights(pair, at::kDouble);
  load(pair, weights);
  attach_gradients(pair);
  const at::Tensor x = at::randn({5, 6}, at::kDouble), dy = at::randn({5, 16}, at::kDouble);
  const at::Tensor y = pair.qkv.forward(x);
  EXPECT_LT(relative_difference(y.detach(), x.mm(weights.at("c_attn.weight")) + weights.at("c_attn.bias")), 1e-14);
  y.backward(dy);
  const TensorMap gradients = gradients_of(pair);
  EXPECT_LT(relative_difference(gradients.at("c_attn.weight"), x.t().mm(dy)), 1e-14);
  EXPECT_LT(relative_difference(gradients.at("c_attn.bias"), dy.sum(0)), 1e-14);
}

// A column and a row layer with biases.
struct DeferredPair : Module {
  Linear up, down;
  explicit DeferredPair(const LayerContext& c)
      : up(c, "up", 6, 8, {.role = LinearRole::kColumn, .has_bias = true}),
        down(c, "down", 8, 6, {.role = LinearRole::kRow, .has_bias = true}) {
    register_module(up);
    register_module(down);
  }
};

struct DeferredOutcome {
  std::vector<at::Tensor> dx;
  TensorMap before_products, after_products;
  std::vector<size_t> num_products;
};

// Two passes in bf16 or double; with `defers` the products of both run at the end, the first pass's first.
DeferredOutcome run_deferred_pair(const Groups& groups, bool is_sequence_parallel, at::ScalarType dtype, bool defers,
                                  bool restores) {
  DeferredGradients deferred;
  LayerContext context = context_of(groups, is_sequence_parallel);
  context.dtype = dtype;
  context.kernels = Kernels::kFused;
  context.deferred_gradients = &deferred;
  DeferredPair pair(context);
  load(pair, golden_weights(DeferredPair(context_of(Groups::single())), dtype));
  attach_gradients(pair);
  DeferredOutcome outcome;
  std::vector<DeferredGradients::Products> products(2);
  const int64_t tokens = is_sequence_parallel ? 12 / groups.tp->size() : 12;
  for (size_t pass = 0; pass < 2; ++pass) {
    const auto values = [&](double phase) {
      const double shift = is_sequence_parallel ? groups.tp->rank() : 0;
      return at::sin(at::arange(tokens * 6, at::kDouble) * 0.7 + phase + shift).view({tokens, 6}).to(dtype);
    };
    const at::Tensor x = values(static_cast<double>(pass)).set_requires_grad(true);
    const at::Tensor between = at::tanh(pair.up.forward(x));
    const Kept again = restores ? Kept::computed([kept = between.detach()] { return kept; }) : Kept();
    const at::Tensor y = pair.down.forward({between, again});
    if (defers) deferred.begin(products[pass]);
    y.backward(values(5 + static_cast<double>(pass)));
    deferred.end();
    outcome.dx.push_back(x.grad());
    outcome.num_products.push_back(products[pass].size());
  }
  for (Parameter* parameter : pair.parameters()) {
    outcome.before_products[parameter->name()] = parameter->grad().clone();
  }
  for (DeferredGradients::Products& list : products) {
    DeferredGradients::run(list);
    EXPECT_TRUE(list.empty());
  }
  for (Parameter* parameter : pair.parameters()) {
    outcome.after_products[parameter->name()] = parameter->grad().clone();
  }
  return outcome;
}

TEST(Linear, DeferredWeightGradientsAreTheSameToTheBit) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    for (const int tp : {1, 2}) {
      for (const bool is_sequence_parallel : {false, true}) {
        ThreadWorld(tp).run(Mesh({.tp = tp}), [&](Groups& groups) {
          const auto run = [&](bool defers, bool restores) {
            return run_deferred_pair(groups, is_sequence_parallel && tp > 1, dtype, defers, restores);
          };
          const DeferredOutcome now = run(false, false);
          EXPECT_EQ(now.num_products, (std::vector<size_t>{0, 0}));
          for (const bool restores : {false, true}) {
            const DeferredOutcome later = run(true, restores);
            EXPECT_EQ(later.num_products, (std::vector<size_t>{2, 2}));
            for (size_t pass = 0; pass < 2; ++pass) EXPECT_TRUE(at::equal(later.dx[pass], now.dx[pass]));
            // The buffers begin as NaN.
            EXPECT_TRUE(later.before_products.at("up.weight").isnan().all().item<bool>());
            EXPECT_TRUE(later.before_products.at("down.weight").isnan().all().item<bool>());
            for (const auto& [name, gradient] : now.after_products) {
              EXPECT_TRUE(at::equal(later.after_products.at(name), gradient)) << name;
              EXPECT_GT(gradient.abs().max().item<double>(), 1e-3) << name;
            }
          }
        });
      }
    }
  }
}

TEST(Linear, ADeferredProductKeepsItsTensorsUntilItRan) {
  const Groups groups = Groups::single();
  DeferredGradients deferred;
  LayerContext context = context_of(groups);
  context.deferred_gradients = &deferred;
  Linear layer(context, "w", 3, 2, {});
  layer.weight().initialise(1);
  attach_gradients(layer);
  DeferredGradients::Products products;
  c10::weak_intrusive_ptr<c10::StorageImpl> input{c10::intrusive_ptr<c10::StorageImpl>()};
  {
    const at::Tensor x = at::randn({4, 3}, at::kDouble).set_requires_grad(true);
    const at::Tensor sum = x + 1;
    input = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(sum.storage().unsafeGetStorageImpl());
    const at::Tensor y = layer.forward(sum);
    deferred.begin(products);
    y.sum().backward();
    deferred.end();
    EXPECT_LT(relative_difference(x.grad(), at::ones({4, 2}, at::kDouble).mm(layer.weight().data())), 1e-14);
  }
  EXPECT_GT(input.use_count(), 0u);
  const ProductCounter counter;
  EXPECT_EQ(products.size(), 1u);
  DeferredGradients::run(products);
  EXPECT_EQ(ProductCounter::count(), 1);
  EXPECT_TRUE(products.empty());
  EXPECT_EQ(input.use_count(), 0u);
  EXPECT_TRUE(layer.weight().grad().isfinite().all().item<bool>());
  EXPECT_THROW(deferred.defer([] {}), InternalError);
}

TEST(Linear, SequenceParallelGatheringForTheWeightIsUnderWayDuringTheInputGradient) {
  // On each rank: the gathering begins before the sum of the input gradient, and is waited for after that has begun.
  ThreadWorld(2).run(Mesh({.tp = 2}), [&](Groups& groups) {
    Linear layer(context_of(groups, true), "w", 3, 4, {.role = LinearRole::kColumn});
    layer.weight().initialise(1);
    attach_gradients(layer);
    const at::Tensor y = layer.forward(at::randn({4, 3}, at::kDouble).set_requires_grad(true));
    std::string events;
    groups.tp->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
      events += fmt::format("{} {} ", phase == TracePhase::kStart ? "start" : "end", name_of(record.kind));
    });
    y.sum().backward();
    groups.tp->set_trace_hook({});
    EXPECT_EQ(events, "start all_gather start reduce_scatter end all_gather end reduce_scatter ");
  });
}

}  // namespace
}  // namespace megalith
