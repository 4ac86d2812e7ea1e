// What ranks as threads promise of tensors on devices: results in the order of the stream that waits for them.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <cmath>

#include "comm/thread_world.h"
#include "core/error.h"
#include "device/stream.h"
#include "layouts_pretend/devices_of_ranks.h"

namespace megalith {
namespace {

using test::devices_of_ranks;

// By its address, which is the host's: a copy would wait.
float first_of(const at::Tensor& x) { return *static_cast<const float*>(x.const_data_ptr()); }

void run_on_devices(int size, const std::function<void(Group& group, at::Device device)>& body) {
  ThreadWorld(size, {.devices = &devices_of_ranks()}).run(Mesh({.dp = size}), [&](Groups& groups) {
    body(*groups.dp, devices_of_ranks().device_of(groups.rank));
  });
}

TEST(ThreadGroupOnDevices, EachRankHasItsOwn) {
  run_on_devices(3, [](Group& group, at::Device device) {
    EXPECT_EQ(group.device(), device);
    EXPECT_EQ(device.index(), group.rank());
    const at::Tensor x = at::full({2}, group.rank() + 1, at::TensorOptions(device));
    const at::Tensor all = group.gathered(x, "x");
    EXPECT_EQ(all.device(), device);
    EXPECT_TRUE(at::equal(all.to(at::kCPU), at::tensor({1.0F, 1.0F, 2.0F, 2.0F, 3.0F, 3.0F})));
    EXPECT_EQ(group.reduced(group.rank(), ReduceOp::kMax, "number"), 2);
  });
}

TEST(ThreadGroupOnDevices, ResultsAreNanUntilTheStreamThatWaitsComesToThem) {
  run_on_devices(2, [](Group& group, at::Device device) {
    const at::Tensor x = at::ones({3}, at::TensorOptions(device)), y = at::ones({3}, at::TensorOptions(device));
    Work first = group.all_reduce(x, ReduceOp::kSum, "x"), second = group.all_reduce(y, ReduceOp::kSum, "y");
    EXPECT_TRUE(std::isnan(first_of(x)));
    first.wait();
    EXPECT_EQ(first_of(x), 2);
    // The main stream goes on without what another one waits for.
    const c10::Stream beside = side_stream(device);
    {
      const StreamScope scope(beside);
      second.wait();
    }
    EXPECT_TRUE(std::isnan(first_of(y)));
    StreamEvent waited(device);
    waited.record(beside);
    waited.make_wait(current_stream(device));
    EXPECT_EQ(first_of(y), 2);
  });
}

TEST(ThreadGroupOnDevices, WhatIsReceivedIsNanUntilItsWait) {
  run_on_devices(2, [](Group& group, at::Device device) {
    const int other = 1 - group.rank();
    const at::Tensor mine = at::full({3}, static_cast<float>(group.rank()), at::TensorOptions(device));
    const at::Tensor theirs = at::ones_like(mine);
    Work work = group.send_receive({Transfer::send(mine, other), Transfer::receive(theirs, other)}, "x");
    EXPECT_TRUE(std::isnan(first_of(theirs)));
    work.wait();
    EXPECT_EQ(first_of(theirs), static_cast<float>(other));
  });
}

TEST(ThreadGroupOnDevices, RefusesTensorsOfAnotherDevice) {
  const auto issue = [](const std::function<at::Device(at::Device own)>& where) {
    run_on_devices(2, [&](Group& group, at::Device device) {
      group.all_reduce(at::ones({3}, at::TensorOptions(where(device))), ReduceOp::kSum, "x").wait();
    });
  };
  EXPECT_NO_THROW(issue([](at::Device own) { return own; }));
  EXPECT_THROW(issue([](at::Device) { return at::Device(at::kCPU); }), InternalError);
  EXPECT_THROW(issue([](at::Device) { return devices_of_ranks().device_of(0); }), InternalError);
}

TEST(ThreadGroupOnDevices, RefusesAnInputThatChangesBeforeItsWait) {
  EXPECT_THROW(run_on_devices(2,
                              [](Group& group, at::Device device) {
                                const at::Tensor in = at::ones({3}, at::TensorOptions(device));
                                const at::Tensor out = at::empty({2, 3}, at::TensorOptions(device));
                                Work work = group.all_gather(out, in.unsqueeze(0), "x");
                                in.add_(1);
                                work.wait();
                              }),
               InternalError);
}

}  // namespace
}  // namespace megalith
