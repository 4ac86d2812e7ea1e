// Dry runs: one rank of many, with outputs of the right shape, also without storage.
#include "comm/fake_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(FakeGroup, LiesWhereTheMeshSays) {
  const Groups groups(Mesh({.tp = 4, .dp = 16, .pp = 8}), 100, fake_group_factory(100));
  EXPECT_EQ(groups.world->size(), 512);
  EXPECT_EQ(groups.world->rank(), 100);
  EXPECT_EQ(groups.tp->size(), 4);
  EXPECT_EQ(groups.dp->rank(), groups.mesh.coordinate(Axis::kDp, 100));
  EXPECT_EQ(groups.pp->size(), 8);
}

TEST(FakeGroup, CollectivesReturnAtOnceWithWhatThisRankHas) {
  for (const at::Device device : {at::kCPU, at::kMeta}) {
    FakeGroup group({3, 4, 5}, 1, "tp");
    const auto expect_values = [&](const at::Tensor& found, const at::Tensor& expected) {
      if (device.is_cpu()) {
        EXPECT_TRUE(at::equal(found, expected));
      }
    };
    const at::Tensor in = at::arange(6, at::TensorOptions(device).dtype(at::kFloat)).view({3, 2});

    const at::Tensor gathered = group.gathered(in, "x");
    EXPECT_EQ(gathered.sizes(), at::IntArrayRef({9, 2}));
    expect_values(gathered, in.repeat({3, 1}));

    const at::Tensor scattered = group.reduce_scattered(in, ReduceOp::kSum, "x");
    EXPECT_EQ(scattered.sizes(), at::IntArrayRef({1, 2}));
    expect_values(scattered, in.narrow(0, 1, 1));

    const at::Tensor exchanged = group.exchanged(in, {1, 0, 4}, {1, 1, 1}, "x");
    EXPECT_EQ(exchanged.sizes(), at::IntArrayRef({5, 2}));
    expect_values(exchanged.narrow(0, 1, 1), in.narrow(0, 2, 1));
    expect_values(exchanged.narrow(0, 2, 3), at::zeros({3, 2}));

    const at::Tensor received = at::ones({2}, device);
    group.send_receive({Transfer::send(in, 0), Transfer::receive(received, 2)}, "x").wait();
    expect_values(received, at::zeros({2}));
    group.all_reduce(in, ReduceOp::kAvg, "x").wait();
    group.broadcast(in, 2, "x").wait();
    group.barrier("x").wait();
  }
}

}  // namespace
}  // namespace megalith
