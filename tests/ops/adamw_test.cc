// adamw_: against the published formula in double, against the reference, and against torch's own fused step.
#include "ops/adamw/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "support/dtypes.h"
#include "support/on_device.h"
#include "support/tensor_near.h"

namespace megalith::ops::adamw_test {
namespace {

using at::Tensor;
using Adamw = testing::OnDevice;

AdamwShard random_shard(int64_t count, at::ScalarType model, at::ScalarType moments, double lr, double weight_decay) {
  const at::ScalarType wide = model == at::kDouble ? at::kDouble : at::kFloat;
  AdamwShard shard;
  shard.master = testing::randn({count}, wide);
  if (model != wide) shard.model = shard.master.to(model);
  shard.grad = testing::randn({count}, wide);
  shard.exp_avg = (testing::randn({count}, wide) / 10).to(moments);
  shard.exp_avg_sq = (testing::rand({count}, wide) / 100).to(moments);
  shard.lr = lr;
  shard.weight_decay = weight_decay;
  return shard;
}

AdamwShard copy_of(const AdamwShard& shard) {
  AdamwShard copy = shard;
  for (Tensor AdamwShard::*member :
       {&AdamwShard::model, &AdamwShard::master, &AdamwShard::grad, &AdamwShard::exp_avg, &AdamwShard::exp_avg_sq}) {
    if ((copy.*member).defined()) copy.*member = (copy.*member).clone();
  }
  return copy;
}

// The formula of the header, in double.
AdamwShard stepped_in_double(const AdamwShard& shard, double grad_scale, const AdamwOptions& o) {
  AdamwShard result = shard;
  const Tensor g = shard.grad.to(at::kDouble) * grad_scale;
  result.exp_avg = o.beta1 * shard.exp_avg.to(at::kDouble) + (1 - o.beta1) * g;
  result.exp_avg_sq = o.beta2 * shard.exp_avg_sq.to(at::kDouble) + (1 - o.beta2) * g * g;
  const Tensor m = result.exp_avg / (1 - std::pow(o.beta1, o.step)),
               v = result.exp_avg_sq / (1 - std::pow(o.beta2, o.step));
  const Tensor w = shard.master.to(at::kDouble);
  result.master = w - shard.lr * (m / (v.sqrt() + o.eps) + shard.weight_decay * w);
  return result;
}

constexpr AdamwOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};

TEST_P(Adamw, MatchesTheFormulaForEveryMixOfDtypes) {
  at::manual_seed(1);
  struct Mix {
    at::ScalarType model, moments;
  };
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const auto& [model, moments] :
         {Mix{at::kFloat, at::kFloat}, Mix{at::kBFloat16, at::kFloat}, Mix{at::kHalf, at::kFloat},
          Mix{at::kFloat, at::kBFloat16}, Mix{at::kBFloat16, at::kBFloat16}, Mix{at::kHalf, at::kBFloat16},
          Mix{at::kDouble, at::kDouble}}) {
      // Several shards of awkward lengths (one larger than a thread's piece), each with its own rate and decay.
      std::vector<AdamwShard> shards;
      for (const int64_t count : {1, 7, 64, 1031, 70001}) {
        shards.push_back(
            random_shard(count, model, moments, 1e-2 / static_cast<double>(count % 5 + 1), count % 2 ? 0.1 : 0));
      }
      std::vector<AdamwShard> expected;
      for (const AdamwShard& shard : shards) expected.push_back(stepped_in_double(shard, 0.5, kOptions));
      adamw_(shards, testing::scalar_tensor(0.5, at::kDouble), kOptions, kernels);
      for (size_t i = 0; i < shards.size(); ++i) {
        const auto what = fmt::format("{} elements, model {}, moments {}", shards[i].master.numel(),
                                      c10::toString(model), c10::toString(moments));
        const double wide = model == at::kDouble ? 1e-14 : 1e-6;
        EXPECT_TENSOR_NEAR(shards[i].master, expected[i].master, {.abs = wide, .rel = wide, .what = what});
        // Moments: a few operations in the wide dtype, then one rounding when they are kept in bf16.
        const double narrow = moments == at::kBFloat16 ? 0x1p-8 : 0;
        EXPECT_TENSOR_NEAR(shards[i].exp_avg, expected[i].exp_avg, {.abs = wide, .rel = wide + narrow, .what = what});
        EXPECT_TENSOR_NEAR(shards[i].exp_avg_sq, expected[i].exp_avg_sq, {.rel = wide + narrow, .what = what});
        if (shards[i].model.defined()) {
          EXPECT_TENSOR_NEAR(shards[i].model, shards[i].master.to(model), {.what = what});
        }
      }
    }
  }
}

TEST_P(Adamw, FusedFollowsTheReferenceOverManySteps) {
  at::manual_seed(2);
  AdamwShard fused = random_shard(97, at::kBFloat16, at::kFloat, 1e-2, 0.1);
  fused.exp_avg.zero_();
  fused.exp_avg_sq.zero_();
  AdamwShard reference = copy_of(fused);
  const Tensor scale = testing::scalar_tensor(1.0, at::kFloat);
  for (int64_t step = 1; step <= 50; ++step) {
    const Tensor grad = testing::randn({97});
    fused.grad.copy_(grad);
    reference.grad.copy_(grad);
    adamw_({fused}, scale, {.step = step});
    adamw_({reference}, scale, {.step = step}, Kernels::kReference);
  }
  // 50 steps of 1e-2, each with a relative error of a few units of float.
  EXPECT_TENSOR_NEAR(fused.master, reference.master, {.abs = 50 * 1e-2 * 1e-6, .rel = 1e-6});
}

TEST_P(Adamw, AgreesWithTorchsFusedStep) {
  at::manual_seed(3);
  AdamwShard ours = random_shard(1031, at::kFloat, at::kFloat, 3e-3, 0.1);
  const AdamwShard torchs = copy_of(ours);
  adamw_({ours}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
  // torch's step counts from 1 and is kept in a tensor.
  std::vector<Tensor> parameters{torchs.master}, gradients{torchs.grad}, exp_avg{torchs.exp_avg},
      exp_avg_sq{torchs.exp_avg_sq}, steps{testing::scalar_tensor(3.0, at::kFloat)};
  at::_fused_adamw_(parameters, gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps, ours.lr, kOptions.beta1,
                    kOptions.beta2, ours.weight_decay, kOptions.eps, /*amsgrad=*/false, /*maximize=*/false);
  EXPECT_TENSOR_NEAR(ours.master, torchs.master, {.abs = 1e-7, .rel = 2e-7});  // a unit of float
  EXPECT_TENSOR_NEAR(ours.exp_avg, torchs.exp_avg, {.abs = 1e-8, .rel = 2e-7});
  EXPECT_TENSOR_NEAR(ours.exp_avg_sq, torchs.exp_avg_sq, {.rel = 3e-7});
}

TEST(Adamw, ResultDoesNotDependOnTheNumberOfThreads) {
  at::manual_seed(4);
  const AdamwShard start = random_shard(200003, at::kBFloat16, at::kFloat, 1e-3, 0.01);
  const int before = at::get_num_threads();
  std::vector<AdamwShard> results;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    results.push_back(copy_of(start));
    adamw_({results.back()}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(results[0].master, results[1].master));
  EXPECT_TRUE(at::equal(results[0].model, results[1].model));
}

TEST_P(Adamw, TensorsMayHaveShapesAndRequireGradients) {
  at::manual_seed(5);
  AdamwShard flat = random_shard(12, at::kBFloat16, at::kFloat, 1e-2, 0.1), shaped = copy_of(flat);
  shaped.model = shaped.model.view({3, 4}).requires_grad_(true);
  shaped.grad = shaped.grad.view({3, 4});
  adamw_({flat}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
  adamw_({shaped}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
  EXPECT_TENSOR_NEAR(shaped.model, flat.model.view({3, 4}));
}

constexpr Tensor AdamwShard::*kChanged[] = {&AdamwShard::model, &AdamwShard::master, &AdamwShard::exp_avg,
                                            &AdamwShard::exp_avg_sq};

// The step's number, and whether it is made, may be known only to the device.
TEST_P(Adamw, AStepThatTheDeviceCountsIsTheSame) {
  at::manual_seed(6);
  const Tensor scale = testing::scalar_tensor(0.5, at::kDouble);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    const AdamwShard start = random_shard(1031, at::kBFloat16, at::kFloat, 1e-2, 0.1);
    const AdamwShard expected = copy_of(start), certain = copy_of(start), decided = copy_of(start);
    adamw_({expected}, scale, kOptions, kernels);
    const AdamwOptions options{.beta1 = kOptions.beta1, .beta2 = kOptions.beta2, .eps = kOptions.eps};
    const Tensor step = testing::scalar_tensor(static_cast<double>(kOptions.step), at::kDouble);
    adamw_({certain}, scale, options, kernels, {.step = step, .is_made = {}});
    adamw_({decided}, scale, options, kernels, {.step = step, .is_made = testing::ones({}, at::kBool)});
    for (const auto member : kChanged) {
      EXPECT_TENSOR_NEAR(certain.*member, expected.*member, {.what = "counted by the device"});
      EXPECT_TENSOR_NEAR(decided.*member, expected.*member, {.what = "decided by the device"});
    }
  }
}

TEST_P(Adamw, AStepThatIsNotMadeChangesNothing) {
  at::manual_seed(7);
  for (const Kernels kernels : {Kernels::kFused, Kernels::kReference}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      const AdamwShard start = random_shard(1031, at::kBFloat16, moments, 1e-2, 0.1), shard = copy_of(start);
      shard.grad.fill_(std::nan(""));
      // No step was made before, so the corrections are zero.
      adamw_({shard}, testing::scalar_tensor(std::nan(""), at::kDouble), {}, kernels,
             {.step = testing::scalar_tensor(0.0, at::kDouble), .is_made = testing::zeros({}, at::kBool)});
      for (const auto member : kChanged) EXPECT_TRUE(at::equal(shard.*member, start.*member));
    }
  }
}

TEST(Adamw, NoShardsAndEmptyShardsAreNoSteps) {
  adamw_({}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
  adamw_({random_shard(0, at::kBFloat16, at::kFloat, 1e-2, 0.1)}, testing::scalar_tensor(1.0, at::kDouble), kOptions);
}

TEST(Adamw, WrongShardsAreNamed) {
  const Tensor scale = testing::scalar_tensor(1.0, at::kDouble);
  const AdamwShard good = random_shard(8, at::kBFloat16, at::kFloat, 1e-2, 0.1);
  AdamwShard bad = copy_of(good);
  bad.grad = testing::zeros({7});
  EXPECT_THROW(adamw_({bad}, scale, kOptions), UserError);
  bad = copy_of(good);
  bad.grad = bad.grad.to(at::kHalf);
  EXPECT_THROW(adamw_({bad}, scale, kOptions), UserError);
  bad = copy_of(good);
  bad.exp_avg = bad.exp_avg.to(at::kHalf);
  EXPECT_THROW(adamw_({bad}, scale, kOptions), UserError);
  bad = copy_of(good);
  bad.exp_avg_sq = Tensor();
  EXPECT_THROW(adamw_({bad}, scale, kOptions), UserError);
  EXPECT_THROW(adamw_({good}, testing::ones({2}), kOptions), UserError);
  EXPECT_THROW(adamw_({good}, scale, {.step = 0}), UserError);
  const Tensor yes = testing::ones({}, at::kBool);
  EXPECT_THROW(adamw_({good}, scale, {}, Kernels::kFused, {.step = yes, .is_made = yes}), UserError);
  EXPECT_THROW(adamw_({good}, scale, {}, Kernels::kFused, {.step = scale, .is_made = scale}), UserError);
}

MEGALITH_ON_EVERY_DEVICE(Adamw);

}  // namespace
}  // namespace megalith::ops::adamw_test
