// Optimizer states in 2 bytes: the same numbers under every layout, what they take, and how well they train.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "comm/thread_world.h"
#include "optim/narrow_master.h"
#include "optim/optimizer.h"
#include "optim/update_rules.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"
#include "support/source_dir.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

OptimizerOptions narrow_options(MasterWeights masters, MomentDtype moments, bool is_random) {
  return {.clip_grad = 0,
          .use_precision_aware_optimizer = moments == MomentDtype::kBf16,
          .exp_avg_dtype = moments,
          .exp_avg_sq_dtype = moments,
          .master_weights = masters,
          .stochastic_rounding = is_random};
}

const OptimizerOptions kAllBf16 = narrow_options(MasterWeights::kNone, MomentDtype::kBf16, true);

// ---- Layouts ----

enum class Sharded { kNot, kZero, kFsdp };

using Canonical = std::map<std::string, at::Tensor>;

// A matrix cut by columns, a fused one by rows of each part, one that files hold transposed, a table and a vector, over
// the tensor-parallel ranks of `groups`.
std::vector<std::unique_ptr<Parameter>> bf16_parameters(const Groups& groups) {
  const int64_t n = groups.tp->size(), r = groups.tp->rank();
  std::map<std::string, Placement> placements;
  Placement& columns = placements["down"];
  columns.local_shape = {12, 10 / n};
  columns.pieces.push_back({"down", {12, 10}, Box{{0, r * 10 / n}, {12, 10 / n}}, Box::whole(columns.local_shape)});
  Placement& fused = placements["qkv"];
  fused.local_shape = {16 / n, 10};
  int64_t row = 0;
  for (const auto& [name, rows] : std::map<std::string, int64_t>{{"k", 4}, {"q", 8}, {"v", 4}}) {
    fused.pieces.push_back({name, {rows, 10}, Box{{r * rows / n, 0}, {rows / n, 10}}, Box{{row, 0}, {rows / n, 10}}});
    row += rows / n;
  }
  Placement& transposed = placements["c_attn"];
  transposed.local_shape = {14 / n, 6};
  transposed.pieces.push_back(
      {"c_attn", {6, 14}, Box{{0, r * 14 / n}, {6, 14 / n}}, Box::whole(transposed.local_shape), true});
  placements["table"] = Placement::whole("table", {17, 6});
  placements["norm"] = Placement::whole("norm", {13});
  std::vector<std::unique_ptr<Parameter>> params;
  for (auto& [name, placement] : placements) {
    placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
    if (name == "table" || name == "norm") placement.replica_axes.insert(Axis::kTp);
    params.push_back(std::make_unique<Parameter>(name, placement,
                                                 ParameterOptions{.dtype = at::kBFloat16, .init = Init::normal(0.5)}));
  }
  return params;
}

std::unique_ptr<DataParallel> shard(Sharded how, const std::vector<Parameter*>& params, const Groups& groups) {
  switch (how) {
    case Sharded::kNot:
      return std::make_unique<GradBuffer>(params, groups, GradBufferOptions{});
    case Sharded::kZero:
      return std::make_unique<ShardedGradBuffer>(params, groups, ShardedBufferOptions{});
    case Sharded::kFsdp:
      return std::make_unique<Fsdp>(params, std::vector<Block>{}, groups, FsdpOptions{});
  }
  return nullptr;
}

// Calls visit(canonical box's view of a whole tensor, the part's view of it) for each piece of a part; values of a part
// are brought to the local shape first.
template <typename Visit>
void for_each_piece(const OwnedPart& part, const at::Tensor& local, const Visit& visit) {
  const auto box_of = [](at::Tensor x, const Box& box) {
    for (size_t d = 0; d < box.offset.size(); ++d) x = x.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
    return x;
  };
  for (const Piece& piece : part.parameter->placement().pieces) {
    const at::Tensor mine = box_of(local, piece.local);
    visit(
        piece, [&](const at::Tensor& whole) { return box_of(whole, piece.canonical); },
        piece.is_transposed ? mine.t() : mine);
  }
}

// The gradient of a canonical tensor in a step: of all sizes.
at::Tensor canonical_gradient(const std::string& name, const std::vector<int64_t>& shape, int64_t step) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const double seed = static_cast<double>(name[0]) + 7.0 * static_cast<double>(step);
  const at::Tensor i = at::arange(count, at::kDouble);
  return (at::sin(0.37 * i * i + seed) * at::exp(3 * at::cos(1.7 * i + seed))).to(at::kFloat).view(shape);
}

using Gradient = at::Tensor (*)(const std::string& name, const std::vector<int64_t>& shape, int64_t step);

at::Tensor gradient_of(const OwnedPart& part, int64_t step, Gradient gradient) {
  const Placement& placement = part.parameter->placement();
  at::Tensor local = at::zeros(placement.local_shape, at::kFloat);
  for_each_piece(part, local, [&](const Piece& piece, const auto& cut, const at::Tensor& mine) {
    mine.copy_(cut(gradient(piece.name, piece.shape, step)));
  });
  return part.range ? local.view({-1}).narrow(0, part.range->begin, part.range->size()) : local;
}

// Puts what the optimizer keeps under "KEY NAME" of canonical tensors.
void collect(const OwnedPart& part, const std::string& key, const at::Tensor& values, Canonical& all) {
  const Placement& placement = part.parameter->placement();
  const FlatRange range = part.range.value_or(FlatRange{0, placement.num_local_elements()});
  // NaN where the part has nothing.
  at::Tensor local = at::full({placement.num_local_elements()}, std::nan(""), at::kFloat);
  local.narrow(0, range.begin, range.size()).copy_(values.reshape({-1}));
  local = local.view(placement.local_shape);
  for_each_piece(part, local, [&](const Piece& piece, const auto& cut, const at::Tensor& mine) {
    at::Tensor& whole = all[key + " " + piece.name];
    if (!whole.defined()) whole = at::full(piece.shape, std::nan(""), at::kFloat);
    const at::Tensor there = cut(whole);
    // Replicas write the same; that they do is seen here.
    EXPECT_TRUE(at::logical_or(at::logical_or(there.isnan(), mine.isnan()), there == mine).all().template item<bool>());
    there.copy_(at::where(mine.isnan(), there, mine));
  });
}

// Weights and state after a few steps, put together from all ranks.
Canonical trained(const Mesh::Sizes& sizes, Sharded how, const OptimizerOptions& options, Kernels kernels,
                  Gradient gradient = canonical_gradient, double num_sanitized = 0) {
  const Mesh mesh(sizes);
  Canonical all;
  std::mutex mutex;
  ThreadWorld(mesh.world_size()).run(mesh, [&](Groups& groups) {
    const auto params = bf16_parameters(groups);
    std::vector<Parameter*> pointers;
    for (const auto& one : params) pointers.push_back(one.get());
    const auto data = shard(how, pointers, groups);
    data->initialise(3);
    Optimizer optimizer(*data, groups, options, kernels);
    for (int64_t step = 0; step < 6; ++step) {
      for (const OwnedPart& part : data->parts()) part.grad.copy_(gradient_of(part, step, gradient));
      EXPECT_EQ(optimizer.step(/*lr=*/1e-2, /*weight_decay=*/0.1).num_sanitized, num_sanitized);
    }
    data->wait_for_parameters();
    const std::lock_guard lock(mutex);
    for (const OwnedPart& part : data->model_parts()) collect(part, "model", part.model, all);
    for (const OptimizerTensor& entry : optimizer.state()) {
      const at::Tensor stored = entry.form ? entry.form->join(entry.form->parts) : entry.tensor;
      collect(*entry.part, entry.key, stored, all);
    }
  });
  return all;
}

void expect_same(const Canonical& found, const Canonical& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    EXPECT_FALSE(tensor.isnan().any().item<bool>()) << name;
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << what << ", " << name;
  }
}

TEST(NarrowStates, EveryLayoutRoundsAlike) {
  struct Layout {
    const char* what;
    Mesh::Sizes mesh;
    Sharded sharded;
  };
  const Layout layouts[] = {{"tp2", {.tp = 2}, Sharded::kNot},
                            {"dp2, replicated", {.dp = 2}, Sharded::kNot},
                            {"dp3, distributed optimizer", {.dp = 3}, Sharded::kZero},
                            {"dp2 tp2, distributed optimizer", {.tp = 2, .dp = 2}, Sharded::kZero},
                            {"dp3, FSDP", {.dp = 3}, Sharded::kFsdp},
                            {"dp2 tp2, FSDP", {.tp = 2, .dp = 2}, Sharded::kFsdp}};
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const OptimizerOptions& options :
         {kAllBf16, narrow_options(MasterWeights::kRemainder, MomentDtype::kBf16, true),
          narrow_options(MasterWeights::kRemainder, MomentDtype::kFp32, false),
          narrow_options(MasterWeights::kFp32, MomentDtype::kBf16, true)}) {
      const Canonical one = trained({}, Sharded::kNot, options, kernels);
      for (const Layout& layout : layouts) {
        expect_same(trained(layout.mesh, layout.sharded, options, kernels), one, layout.what);
      }
    }
  }
}

TEST(NarrowStates, RemaindersAreFp32MastersToTheBit) {
  for (const MomentDtype moments : {MomentDtype::kFp32, MomentDtype::kBf16}) {
    const Canonical whole =
        trained({}, Sharded::kNot, narrow_options(MasterWeights::kFp32, moments, false), Kernels::kFused);
    for (const Sharded how : {Sharded::kNot, Sharded::kZero, Sharded::kFsdp}) {
      expect_same(trained({.dp = 2}, how, narrow_options(MasterWeights::kRemainder, moments, false), Kernels::kFused),
                  whole, "remainders");
    }
  }
}

// sft_sanitize_nan_grads: each element that is not finite counts once, and as 0.
TEST(NarrowStates, GradientsThatAreNotFiniteAreZeroOnEveryLayout) {
  constexpr Gradient kHoles = [](const std::string& name, const std::vector<int64_t>& shape, int64_t step) {
    const at::Tensor holed = canonical_gradient(name, shape, step);
    holed.view({-1}).slice(0, 0, std::nullopt, 5).zero_();
    return holed;
  };
  constexpr Gradient kBad = [](const std::string& name, const std::vector<int64_t>& shape, int64_t step) {
    const at::Tensor bad = canonical_gradient(name, shape, step);
    bad.view({-1}).slice(0, 0, std::nullopt, 5).fill_(std::nan(""));
    bad.view({-1}).slice(0, 5, std::nullopt, 10).fill_(-INFINITY);
    return bad;
  };
  constexpr double kNumBad = 24 + 16 + 8 + 8 + 17 + 21 + 3;  // of down, q, k, v, c_attn, table and norm
  OptimizerOptions options{.clip_grad = 0};
  const Canonical expected = trained({}, Sharded::kNot, options, Kernels::kFused, kHoles);
  options.sft_sanitize_nan_grads = true;
  for (const Sharded how : {Sharded::kNot, Sharded::kZero, Sharded::kFsdp}) {
    expect_same(trained({.tp = 2, .dp = 2}, how, options, Kernels::kFused, kBad, kNumBad), expected, "sanitized");
  }
}

// ---- One parameter ----

struct OneParameter {
  OneParameter(std::vector<int64_t> shape, const OptimizerOptions& options)
      : weight("w", Placement::whole("w", std::move(shape)), {.dtype = at::kBFloat16, .init = Init::normal(0.5)}) {
    weight.initialise(1);
    buffer = std::make_unique<GradBuffer>(std::vector<Parameter*>{&weight}, groups, GradBufferOptions{});
    optimizer = std::make_unique<Optimizer>(*buffer, groups, options, Kernels::kFused);
  }

  Groups groups = Groups::single();
  Parameter weight;
  std::unique_ptr<GradBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
};

// A master that is set anew has no remainder, and no mark of one.
TEST(NarrowStates, ResetMastersAreTheModelsWeights) {
  OneParameter one({70001}, narrow_options(MasterWeights::kRemainder, MomentDtype::kFp32, false));
  const auto master = [&] { return one.optimizer->state()[0].form->join(one.optimizer->state()[0].form->parts); };
  const at::Tensor square = one.optimizer->state()[2].tensor;
  for (int step = 0; !square.signbit().any().item<bool>(); ++step) {
    ASSERT_LT(step, 50) << "no tie in 3.5 million masters, of which one in 2^17 is one";
    one.weight.grad().copy_(canonical_gradient("w", {70001}, step));
    one.optimizer->step(1e-2, 0.1);
  }
  EXPECT_FALSE(at::equal(master(), one.weight.data().to(at::kFloat)));
  EXPECT_NEAR(one.optimizer->params_norm(), master().to(at::kDouble).norm().item<double>(), 1e-9 * 70001);
  one.optimizer->reset_masters();
  EXPECT_TRUE(at::equal(master(), one.weight.data().to(at::kFloat)));
}

// ---- Memory ----

// Bytes of this thread's tensors on the CPU, counted by their allocator.
class CpuBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*at*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/, c10::Device) override {
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;
};

// Each combination takes the bytes that docs/optimizers.md says, and a step takes none beside them.
TEST(NarrowStates, TakeTheBytesThatTheTableSays) {
  constexpr int64_t kElements = 1 << 18;
  // Numbers of a step, tensors' books, rounding of allocations: nothing that grows with the elements.
  constexpr int64_t kSlack = 4096;
  std::ifstream page(test::source_dir() / "docs/optimizers.md");
  std::stringstream text;
  text << page.rdbuf();
  const std::map<MasterWeights, std::string> masters = {
      {MasterWeights::kFp32, "fp32"}, {MasterWeights::kRemainder, "remainder"}, {MasterWeights::kNone, "none"}};
  for (const auto& [form, name] : masters) {
    for (const MomentDtype moments : {MomentDtype::kFp32, MomentDtype::kBf16}) {
      for (const bool is_random : {false, true}) {
        if (is_random && form != MasterWeights::kNone && moments == MomentDtype::kFp32) continue;  // refused
        const auto bytes = std::make_shared<CpuBytes>();
        const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
        OneParameter one({kElements / 512, 512}, narrow_options(form, moments, is_random));
        const int64_t all = bytes->live, state = one.optimizer->num_bytes();
        EXPECT_EQ(state % kElements, 0);
        EXPECT_EQ(all / kElements, state / kElements + 2 + 4);  // a bf16 weight, and its gradient
        EXPECT_LE(all % kElements, kSlack);
        const std::string row =
            fmt::format("| `{}` | {} | {} | {} |", name, moments == MomentDtype::kFp32 ? "fp32" : "bf16",
                        state / kElements, all / kElements);
        EXPECT_NE(text.str().find(row), std::string::npos) << "docs/optimizers.md has no row " << row;
        EXPECT_EQ(optimizer_bytes({&one.weight}, narrow_options(form, moments, is_random)), state);
        one.weight.grad().fill_(1e-3);
        one.optimizer->step(1e-3, 0.1);
        bytes->peak = bytes->live;
        one.optimizer->step(1e-3, 0.1);
        // The norm of the gradient is summed in blocks; the update needs nothing.
        EXPECT_LE(bytes->peak, all + 4 * kSlack) << row;
      }
    }
  }
}

// ---- Training ----

// The distance that is left after 300 steps of a regression towards weights 0.2 away, all rows at once. Weights are
// between 1 and 2, where bf16 numbers are 2^-7 apart: a step of 1e-3 is an eighth of that.
double distance_after_training(const OptimizerOptions& options) {
  constexpr int64_t kInputs = 64, kOutputs = 16, kRows = 256;
  OneParameter one({kOutputs, kInputs}, options);
  one.weight.data().copy_(at::linspace(1.0, 1.6, kInputs * kOutputs, at::kFloat).view({kOutputs, kInputs}));
  one.optimizer->reset_masters();
  const at::Tensor target = one.weight.data().to(at::kFloat) + 0.2;
  at::manual_seed(11);
  const at::Tensor x = at::randn({kRows, kInputs}), curvature = x.t().matmul(x) / kRows;
  for (int step = 0; step < 300; ++step) {
    one.weight.grad().copy_((one.weight.data().to(at::kFloat) - target).matmul(curvature));
    one.optimizer->step(1e-3, 0);
  }
  return (one.weight.data().to(at::kFloat) - target).square().mean().sqrt().item<double>();
}

TEST(NarrowStates, AllBf16RoundedAtRandomTrainsAsFp32MastersDo) {
  const double masters = distance_after_training(narrow_options(MasterWeights::kFp32, MomentDtype::kFp32, false));
  EXPECT_LT(masters, 0.2 / 8);
  // Rounding a step of 1e-3 at random has a variance of at most 1e-3 * 2^-7. The gradient takes back what has come
  // together in the last few tens of steps: 50 of them deviate by 0.02, of which twice are allowed.
  const double walk = std::sqrt(50 * 1e-3 * 0x1p-7);
  EXPECT_LT(distance_after_training(kAllBf16), masters + 2 * walk);
  // With masters only the moments are rounded.
  EXPECT_LT(distance_after_training(narrow_options(MasterWeights::kRemainder, MomentDtype::kBf16, true)),
            masters + walk / 2);
  // Rounded to the nearest, no weight moves.
  EXPECT_NEAR(distance_after_training(narrow_options(MasterWeights::kNone, MomentDtype::kBf16, false)), 0.2, 1e-6);
}

// With the gradient gone the second moment goes down by 0.1 % a step, less than half a unit of bf16: rounded to the
// nearest it would stay for ever.
TEST(NarrowStates, SecondMomentsRoundedAtRandomForget) {
  for (const bool is_random : {false, true}) {
    OneParameter one({64, 64}, narrow_options(MasterWeights::kRemainder, MomentDtype::kBf16, is_random));
    const at::Tensor square = one.optimizer->state()[2].tensor;
    one.weight.grad().fill_(1.0);
    one.optimizer->step(0, 0);
    const double before = square.abs().to(at::kDouble).mean().item<double>();
    one.weight.grad().fill_(0.0);
    for (int step = 0; step < 700; ++step) one.optimizer->step(0, 0);
    const double after = square.abs().to(at::kDouble).mean().item<double>(), exact = before * std::pow(0.999, 700);
    if (is_random) {
      // The mean of 4096 elements deviates by 1/64 of one's, which after 700 steps is below a third of the value.
      EXPECT_NEAR(after, exact, exact * 5 / 64 / 3);
    } else {
      EXPECT_GT(after, before * 0.95);
    }
  }
}

}  // namespace
}  // namespace megalith
