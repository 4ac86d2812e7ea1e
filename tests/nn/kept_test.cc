// Keeps a tensor, or a computation that runs once for all who ask.
#include "nn/kept.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

TEST(Kept, ATensorIsItsMemoryWithoutItsGraph) {
  const at::Tensor leaf = at::ones({3}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = leaf * 2;
  const Kept kept(y);
  EXPECT_FALSE(kept.is_computed());
  EXPECT_FALSE(kept.get().requires_grad());
  EXPECT_EQ(kept.get().const_data_ptr(), y.const_data_ptr());
  EXPECT_FALSE(Kept().is_defined());
  EXPECT_FALSE(Kept(at::Tensor()).is_defined());
  EXPECT_FALSE(Kept().get().defined());
}

TEST(Kept, ATensorThatIsChangedInPlaceIsNoticed) {
  const at::Tensor x = at::ones({3});
  const Kept kept(x);
  EXPECT_TRUE(at::equal(kept.get(), x));
  x.add_(1);
  EXPECT_THROW(kept.get(), InternalError);
}

TEST(Kept, AComputationRunsOnceForAllWhoAskAndRecordsNothing) {
  int num_runs = 0;
  auto source = std::make_shared<at::Tensor>(at::ones({3}, at::kDouble).set_requires_grad(true));
  const std::weak_ptr<at::Tensor> held = source;
  Kept first = Kept::computed([&num_runs, source] {
    ++num_runs;
    return *source * 3;
  });
  source.reset();
  Kept second = first;
  EXPECT_TRUE(first.is_computed());
  EXPECT_EQ(num_runs, 0);
  const at::Tensor value = first.take();
  EXPECT_FALSE(first.is_defined());
  EXPECT_FALSE(value.requires_grad());
  EXPECT_TRUE(held.expired());  // the computation held it
  EXPECT_FALSE(second.is_computed());
  EXPECT_EQ(second.get().const_data_ptr(), value.const_data_ptr());
  EXPECT_EQ(num_runs, 1);
}

TEST(Kept, WhatWasComputedLivesAsLongAsSomebodyHoldsIt) {
  Kept first = Kept::computed([] { return at::ones({3}); });
  Kept second = first;
  const auto weak = first.take().storage().getWeakStorageImpl();
  EXPECT_FALSE(weak.expired());
  second = {};
  EXPECT_TRUE(weak.expired());
}

TEST(Kept, SeveralResultsComeFromOneComputation) {
  int num_runs = 0;
  const std::vector<Kept> both = Kept::computed(2, [&num_runs] {
    ++num_runs;
    return std::vector<at::Tensor>{at::zeros({1}), at::ones({2})};
  });
  EXPECT_EQ(both.at(1).get().numel(), 2);
  EXPECT_EQ(both.at(0).get().numel(), 1);
  EXPECT_EQ(num_runs, 1);
  const std::vector<Kept> wrong = Kept::computed(2, [] { return std::vector<at::Tensor>{at::zeros({1})}; });
  EXPECT_THROW(wrong[0].get(), InternalError);
}

TEST(Kept, AChangeIsComputedFromWhatIsKept) {
  const at::Tensor x = at::arange(3, at::kDouble);
  const Kept doubled = Kept(x).then([](const at::Tensor& value) { return value * 2; });
  EXPECT_TRUE(at::equal(doubled.then([](const at::Tensor& value) { return value + 1; }).get(), x * 2 + 1));
  EXPECT_TRUE(at::equal(Activation(x).keep().get(), x));
  EXPECT_TRUE(at::equal(Activation(x, doubled).keep().get(), x * 2));
}

}  // namespace
}  // namespace megalith
