// adamw_'s GPU kernel under emulation: against the formula in double, equal to the bit in every order.
#include <cmath>
#include <optional>

#include "gpu_kernels/expect.h"
#include "ops/adamw/kernel.h"

namespace megalith::ops {
namespace {

using testing::Array;
using testing::Expected;

struct AdamwTypes {
  std::optional<Dtype> model;  // nothing: the master is the model's own
  Dtype moments;

  Dtype wide() const { return testing::wide_of(moments); }
  std::string what() const {
    return std::string("model ") + (model ? testing::name_of(*model) : "of its own") + ", moments " +
           testing::name_of(moments);
  }
};

constexpr AdamwTypes kAdamwTypes[] = {{Dtype::kBFloat16, Dtype::kFloat32},  {std::nullopt, Dtype::kFloat32},
                                      {Dtype::kBFloat16, Dtype::kBFloat16}, {Dtype::kFloat16, Dtype::kFloat32},
                                      {Dtype::kFloat16, Dtype::kBFloat16},  {Dtype::kFloat32, Dtype::kBFloat16},
                                      {std::nullopt, Dtype::kFloat64}};

struct AdamwArrays {
  AdamwTypes types;
  double lr, weight_decay;
  Array model, master, grad, exp_avg, exp_avg_sq;

  AdamwArrays(const AdamwTypes& t, int64_t count, double lr_, double weight_decay_, int64_t shift = 0)
      : types(t),
        lr(lr_),
        weight_decay(weight_decay_),
        model(t.model.value_or(t.wide()), t.model ? count : 0, shift),
        master(t.wide(), count, shift),
        grad(t.wide(), count, shift),
        exp_avg(t.moments, count, shift),
        exp_avg_sq(t.moments, count, shift) {
    std::mt19937 generator(static_cast<unsigned>(count));
    for (Array* array : {&model, &master, &grad}) array->draw(generator, 0, 1);
    exp_avg.draw(generator, 0, 0.1);
    exp_avg_sq.draw(generator, 0, 0.01);
    for (int64_t i = 0; i < count; ++i) exp_avg_sq.set(i, std::abs(exp_avg_sq[i]));
  }
  std::vector<Array*> changed() { return {&model, &master, &exp_avg, &exp_avg_sq}; }
};

struct StepOfTest {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, grad_scale = 0.5, step = 3;
  bool device_counts = false, scale_is_double = true;
  std::optional<bool> is_made;
};

// A step on copies of what the shards change: model, master, exp_avg and exp_avg_sq of each shard.
std::vector<Array> stepped(std::vector<AdamwArrays>& shards, const StepOfTest& step) {
  std::vector<Array> results;
  for (AdamwArrays& shard : shards) {
    for (Array* array : shard.changed()) {
      // At the same distance from a multiple of 16 bytes.
      const auto shift = reinterpret_cast<uintptr_t>(array->data()) % 16 / testing::bytes_of(array->dtype());
      results.emplace_back(array->dtype(), array->count(), static_cast<int64_t>(shift));
      std::memcpy(results.back().data(), array->data(), array->bytes());
    }
  }
  std::vector<AdamwPiece> pieces;
  for (size_t i = 0; i < shards.size(); ++i) {
    const AdamwTypes& types = shards[i].types;
    pieces.push_back({.model_dtype = types.model.value_or(types.wide()),
                      .moment_dtype = types.moments,
                      .is_double = types.wide() == Dtype::kFloat64,
                      .count = shards[i].master.count(),
                      .model = types.model ? results[4 * i].data() : nullptr,
                      .master = results[4 * i + 1].data(),
                      .grad = shards[i].grad.data(),
                      .exp_avg = results[4 * i + 2].data(),
                      .exp_avg_sq = results[4 * i + 3].data(),
                      .lr = shards[i].lr,
                      .weight_decay = shards[i].weight_decay});
  }
  const auto float_scale = static_cast<float>(step.grad_scale);
  Array scratch(Dtype::kFloat64, gpu::kAdamwScratch);
  const bool is_made = step.is_made.value_or(true);
  gpu::adamw({.shards = pieces.data(),
              .num_shards = static_cast<int64_t>(pieces.size()),
              .beta1 = step.beta1,
              .beta2 = step.beta2,
              .eps = step.eps,
              .grad_scale = step.scale_is_double ? static_cast<const void*>(&step.grad_scale) : &float_scale,
              .scale_is_double = step.scale_is_double,
              .step = step.device_counts ? &step.step : nullptr,
              .is_made = step.is_made ? &is_made : nullptr,
              .host_step = step.device_counts ? 0 : step.step,
              .scratch = static_cast<double*>(scratch.data())},
             nullptr);
  return results;
}

void check(const std::vector<AdamwArrays>& shards, const StepOfTest& step, const std::vector<Array>& results) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const AdamwArrays& shard = shards[i];
    const Array &model = results[4 * i], &master = results[4 * i + 1];
    // A dozen roundings of the wide dtype; moments and model are rounded once more to theirs.
    const double wide = 16 * testing::unit_of(shard.types.wide());
    const double narrow = shard.types.moments == Dtype::kBFloat16 ? testing::unit_of(Dtype::kBFloat16) : 0;
    std::vector<Expected> masters, averages, squares, models;
    for (int64_t j = 0; j < master.count(); ++j) {
      const double g = shard.grad[j] * step.grad_scale;
      const double m = step.beta1 * shard.exp_avg[j] + (1 - step.beta1) * g;
      const double v = step.beta2 * shard.exp_avg_sq[j] + (1 - step.beta2) * g * g;
      const double corrected = m / (1 - std::pow(step.beta1, step.step));
      const double denominator = std::sqrt(v / (1 - std::pow(step.beta2, step.step))) + step.eps;
      const double w = shard.master[j], moved = shard.lr * (corrected / denominator + shard.weight_decay * w);
      masters.push_back(
          {w - moved,
           wide * (std::abs(w) + std::abs(shard.lr * (std::abs(shard.exp_avg[j]) + std::abs(g)) / denominator))});
      averages.push_back({m, narrow * std::abs(m) + wide * (std::abs(shard.exp_avg[j]) + std::abs(g))});
      squares.push_back({v, (narrow + wide) * v});
      if (shard.types.model) {
        const Dtype dtype = *shard.types.model;
        models.push_back({master[j], testing::unit_of(dtype) * std::abs(master[j]) + testing::smallest_step_of(dtype)});
      }
    }
    const std::string what = shard.types.what() + ", " + std::to_string(master.count()) + " elements: ";
    testing::expect_near(model, models, what + "model");
    testing::expect_near(master, masters, what + "master");
    testing::expect_near(results[4 * i + 2], averages, what + "exp_avg");
    testing::expect_near(results[4 * i + 3], squares, what + "exp_avg_sq");
  }
}

void try_step(const std::string& what, std::vector<AdamwArrays>& shards, const StepOfTest& step) {
  testing::in_every_order(
      what, [&] { return stepped(shards, step); },
      [&](const std::vector<Array>& results) { check(shards, step, results); });
}

std::vector<AdamwArrays> shards_of_all_types(const std::vector<int64_t>& counts, int64_t shift = 0) {
  std::vector<AdamwArrays> shards;
  for (const int64_t count : counts) {
    for (const AdamwTypes& types : kAdamwTypes) {
      shards.emplace_back(types, count, 1e-2 / static_cast<double>(count % 5 + 1), count % 2 == 1 ? 0.1 : 0, shift);
    }
  }
  return shards;
}

TEST(AdamwKernels, EqualTheFormulaInDoubleInEveryOrder) {
  // Nothing, one, less than a vector, a tail, more than the threads of a block take at once, and several blocks.
  std::vector<int64_t> counts{0, 1, 3, 31, 1030};
  if (testing::is_thorough()) counts.insert(counts.end(), {16384, 16385, 40001});
  std::vector<AdamwArrays> shards = shards_of_all_types(counts);
  try_step("all mixes of dtypes", shards, {});
}

TEST(AdamwKernels, TakeShardsThatAreNotAligned) {
  std::vector<AdamwArrays> shards = shards_of_all_types({9, 260}, 1);
  try_step("not aligned", shards, {});
}

TEST(AdamwKernels, TakeMoreShardsThanALaunchHasRoomFor) {
  std::vector<AdamwArrays> shards;
  for (int i = 0; i < 103; ++i) shards.emplace_back(kAdamwTypes[i % 2], 1 + i % 7, 1e-3 * (1 + i), 0.01 * i);
  check(shards, {}, stepped(shards, {}));
}

TEST(AdamwKernels, WhatOnlyTheDeviceKnowsIsReadThere) {
  std::vector<AdamwArrays> shards = shards_of_all_types({33});
  const std::vector<Array> expected = stepped(shards, {});
  check(shards, {}, expected);
  // A half is the same number in float.
  for (const StepOfTest& step : {StepOfTest{.device_counts = true}, StepOfTest{.device_counts = true, .is_made = true},
                                 StepOfTest{.scale_is_double = false}}) {
    const std::vector<Array> found = stepped(shards, step);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].has_bits_of(expected[i])) << "result " << i;
  }
}

TEST(AdamwKernels, AStepThatIsNotMadeChangesNothing) {
  std::vector<AdamwArrays> shards = shards_of_all_types({33});
  for (AdamwArrays& shard : shards) shard.grad.set(5, std::nan(""));
  // No step was made before, so the corrections are zero.
  const std::vector<Array> found = stepped(shards, {.step = 0, .device_counts = true, .is_made = false});
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].has_bits_of(*shards[i / 4].changed()[i % 4])) << "result " << i;
  }
}

}  // namespace
}  // namespace megalith::ops
