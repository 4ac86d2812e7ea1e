// Weights in four bits: every cut packs what one rank packs, layers compute with what is packed, and nothing else of it
// is held.
#include "nn/packed_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "nn/linear.h"
#include "nn/low_rank_adapter.h"
#include "nn/moe_layer.h"
#include "ops/nf4/nf4.h"
#include "support/layer_options.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kInner = 320;

std::shared_ptr<const LoraOptions> four_bits(std::vector<std::string> targets) {
  return std::make_shared<const LoraOptions>(LoraOptions{.enabled = true,
                                                         .dim = 2,
                                                         .b_init = AdapterInit::kNormal,
                                                         .target_modules = std::move(targets),
                                                         .quantization = BaseQuantization::kNf4});
}

LayerContext packing_context(const Groups& groups) {
  return {.groups = &groups, .dtype = at::kDouble, .lora = four_bits({"o_proj"})};
}

// Queries, keys and values have 480 rows of five blocks: groups end within a part and within a rank's rows.
std::unique_ptr<Linear> make_fused(const LayerContext& context) {
  return std::make_unique<Linear>(
      context, "attn.qkv_proj", kInner,
      std::vector<LinearPart>{{"attn.q_proj", 240}, {"attn.k_proj", 120}, {"attn.v_proj", 120}},
      LinearOptions{.role = LinearRole::kColumn, .has_bias = true, .kind = LinearKind::kQkv});
}
// 256 columns on each of two ranks.
std::unique_ptr<Linear> make_row(const LayerContext& context) {
  return std::make_unique<Linear>(context, "attn.o_proj", 512, 200,
                                  LinearOptions{.role = LinearRole::kRow, .kind = LinearKind::kAttentionOutput});
}
std::unique_ptr<GroupedExperts> make_packed_experts(const LayerContext& context) {
  LayerOptions options = plain_layer_options(192);
  options.moe_ffn_hidden_size = 256;
  options.num_experts = 4;
  return std::make_unique<GroupedExperts>(context, "mlp", options, MoeSite{});
}

template <typename Make>
void expect_same_on_ranks(const Mesh::Sizes& sizes, int num_ranks, const Make& make, const std::string& what) {
  const Groups alone = Groups::single();
  const auto whole = make(packing_context(alone));
  const TensorMap weights = golden_weights(*whole, at::kDouble);
  load(*whole, weights);
  const TensorMap expected = values_of(*whole);
  std::mutex mutex;
  int64_t num_compared = 0;
  ThreadWorld(num_ranks).run(Mesh(sizes), [&](Groups& groups) {
    const auto layer = make(packing_context(groups));
    load(*layer, weights);
    TensorMap found;
    layer->for_each_parameter([&](Parameter& parameter) {
      const at::Tensor local = parameter.unpacked();
      for (const Piece& piece : parameter.placement().pieces) {
        const std::lock_guard lock(mutex);
        ++num_compared;
        EXPECT_TRUE(at::equal(box_view(local, piece.local), box_view(expected.at(piece.name), piece.canonical)))
            << what << ": " << piece.name << " of rank " << groups.world->rank();
      }
    });
  });
  EXPECT_GT(num_compared, 0) << what;
}

TEST(PackedWeight, EveryCutHoldsTheValuesOfOneRank) {
  for (const int tp : {2, 4}) {
    expect_same_on_ranks({.tp = tp}, tp, make_fused, "rows");
    expect_same_on_ranks({.tp = tp}, tp, make_row, "columns");
  }
  expect_same_on_ranks({.tp = 2, .etp = 2}, 2, make_packed_experts,
                       "cut experts");
  expect_same_on_ranks({.tp = 2, .ep = 2}, 2, make_packed_experts, "whole experts");
}

TEST(PackedWeight, LayersComputeWithWhatIsPacked) {
  const Groups groups = Groups::single();
  LayerContext context = packing_context(groups);
  context.lora = four_bits({"q_proj", "v_proj"});
  const auto layer = make_fused(context);
  freeze_all_but_adapters(layer->parameters());
  const TensorMap weights = golden_weights(*layer, at::kDouble);
  load(*layer, weights);
  attach_gradients(*layer);
  // The same layer, whose weights are the values in four bits.
  auto whole_lora = std::make_shared<LoraOptions>(*context.lora);
  whole_lora->quantization = BaseQuantization::kNone;
  context.lora = whole_lora;
  const auto whole = make_fused(context);
  freeze_all_but_adapters(whole->parameters());
  load(*whole, values_of(*layer));
  attach_gradients(*whole);
  EXPECT_TRUE(layer->weight().is_packed() && !layer->bias()->is_packed() && !whole->weight().is_packed());
  const at::Tensor queries = values_of(*layer).at("attn.q_proj.weight");
  EXPECT_GT(relative_difference(queries, weights.at("attn.q_proj.weight")), 0.01) << "nothing was rounded";

  const at::Tensor x = at::randn({5, kInner}, at::kDouble), dy = at::randn({5, 480}, at::kDouble);
  const at::Tensor first = x.clone().set_requires_grad(true), second = x.clone().set_requires_grad(true);
  const at::Tensor y = layer->forward(first), expected = whole->forward(second);
  EXPECT_TRUE(at::equal(y, expected));
  y.backward(dy);
  expected.backward(dy);
  EXPECT_TRUE(at::equal(first.grad(), second.grad()));
  const TensorMap found = gradients_of(*layer);
  EXPECT_EQ(found.size(), 4U);
  for (const auto& [name, gradient] : gradients_of(*whole)) EXPECT_TRUE(at::equal(found.at(name), gradient)) << name;
}

TEST(PackedWeight, BeginsAsItsInitialisationSays) {
  const Groups groups = Groups::single();
  LayerContext context = packing_context(groups);
  const auto packed = make_row(context);
  packed->weight().initialise(7);
  context.lora = nullptr;
  const auto whole = make_row(context);
  whole->weight().initialise(7);
  const at::Tensor drawn = whole->weight().data();
  EXPECT_FALSE(at::equal(packed->weight().unpacked(), drawn));
  packed->weight().pack(drawn);
  const at::Tensor again = packed->weight().unpacked();
  packed->weight().initialise(7);
  EXPECT_TRUE(at::equal(packed->weight().unpacked(), again));
}

TEST(PackedWeight, HoldsLittleMoreThanFourBitsAnElement) {
  const Groups groups = Groups::single();
  LayerContext context = packing_context(groups);
  context.dtype = at::kBFloat16;
  const Linear layer(context, "attn.o_proj", 4096, 1024, {.role = LinearRole::kRow});
  const double elements = 4096 * 1024;
  const double bits = 8 * static_cast<double>(layer.weight().num_bytes()) / elements;
  // Four of codes, an eighth of scales; groups, rows and the table of levels.
  EXPECT_GT(bits, 4.125);
  EXPECT_LT(bits, 4.15);
  context.device = at::kMeta;
  const Linear shape(context, "attn.o_proj", 4096, 1024, {.role = LinearRole::kRow});
  EXPECT_EQ(shape.weight().num_bytes(), layer.weight().num_bytes());
  EXPECT_EQ(shape.weight().unpacked().sizes(), (at::IntArrayRef{1024, 4096}));
}

TEST(PackedWeight, IsNeitherWrittenToNorTrained) {
  const Groups groups = Groups::single();
  const auto layer = make_row(packing_context(groups));
  EXPECT_THROW(layer->weight().data(), InternalError);
  EXPECT_THROW(layer->weight().set_trainable(true), InternalError);
  EXPECT_TRUE(layer->weight().value().isnan().all().item<bool>()) << "what is read by mistake shows";
}

TEST(PackedWeight, ColumnsThatBeginWithinABlockAreRefused) {
  try {
    ThreadWorld(8).run(Mesh({.tp = 8}), [&](Groups& groups) {
      const Linear layer(packing_context(groups), "attn.o_proj", 320, 64, {.role = LinearRole::kRow});
    });
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("40 columns of attn.o_proj"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace megalith
