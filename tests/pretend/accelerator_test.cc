// The pretend accelerator is as strict as a GPU, and stricter where a GPU only fails at times.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

using at::Tensor;

const at::Device kDevice(at::kPrivateUse1, 0);

at::TensorOptions here() { return at::TensorOptions(kDevice).dtype(at::kFloat); }
at::TensorOptions pinned() { return at::TensorOptions(at::kCPU).dtype(at::kFloat).pinned_memory(true); }

// By its address, which is the host's: copies would wait.
float first_of(const Tensor& x) { return *static_cast<const float*>(x.const_data_ptr()); }

int64_t count_waits(const std::string& what) {
  int64_t count = 0;
  for (const Wait& wait : waits()) count += wait.what == what ? wait.count : 0;
  return count;
}

class Accelerator : public ::testing::Test {
 protected:
  void SetUp() override { forget_waits(); }
  void TearDown() override {
    ignore(Ignored::kNothing);
    streams_of(0).run_all();
  }
};

TEST_F(Accelerator, IsTheOneThatTheProgramChooses) {
  EXPECT_EQ(accelerator_count(), num_devices());
  EXPECT_EQ(select_device(DeviceChoice::kGpu, 0), kDevice);
  EXPECT_EQ(select_device(DeviceChoice::kAuto, 0), kDevice);
}

TEST_F(Accelerator, FreshMemoryIsNan) {
  EXPECT_TRUE(std::isnan(first_of(at::empty({3}, here()))));
  EXPECT_TRUE(std::isnan(at::empty({5}, here().dtype(at::kBFloat16)).sum().item<float>()));
}

TEST_F(Accelerator, FreedMemoryIsNanAndGoesToTheNext) {
  Tensor x = at::ones({100}, here());
  const void* address = x.const_data_ptr();
  x = Tensor();
  EXPECT_TRUE(std::isnan(*static_cast<const float*>(address)));
  EXPECT_EQ(at::empty({100}, here()).const_data_ptr(), address);
}

TEST_F(Accelerator, TensorsOfTwoDevicesDoNotMeet) {
  const Tensor x = at::ones({3}, here()), on_cpu = at::ones({3});
  EXPECT_THROW(x + on_cpu, c10::Error);
  EXPECT_THROW(on_cpu + x, c10::Error);
  EXPECT_THROW(at::cat({x, on_cpu}), c10::Error);
  EXPECT_THROW(x.index_select(0, at::zeros({1}, at::kLong)), c10::Error);
  // A CPU's tensor without dims is a number.
  EXPECT_EQ((x + at::scalar_tensor(2)).sum().item<float>(), 9);
}

TEST_F(Accelerator, ComputesWhatTheCpuComputes) {
  const Tensor x = at::arange(12, at::kFloat).view({3, 4}), on_device = x.to(kDevice);
  EXPECT_TRUE(at::equal(at::mm(on_device, on_device.t()).to(at::kCPU), at::mm(x, x.t())));
  EXPECT_TRUE(at::equal(on_device.narrow(1, 1, 2).softmax(0).to(at::kCPU), x.narrow(1, 1, 2).softmax(0)));
  Tensor out = at::empty({0}, here());
  at::add_out(out, on_device, on_device);
  EXPECT_TRUE(at::equal(out.to(at::kCPU), x + x));
  Tensor part = at::zeros({3, 4}, here());
  part.narrow(0, 1, 1).add_(2);
  EXPECT_EQ(part.sum().item<float>(), 8);
  EXPECT_EQ(at::empty({0, 4}, here()).mul_(2).sizes(), at::IntArrayRef({0, 4}));
}

TEST_F(Accelerator, CountsWhatTheHostWaitsFor) {
  const Tensor x = at::ones({3}, here()), host = at::ones({3});
  EXPECT_EQ(waits().size(), 0);
  EXPECT_EQ(x.sum().item<float>(), 3);
  EXPECT_EQ(count_waits("item"), 1);
  x.to(at::kCPU);
  EXPECT_EQ(count_waits("copy to the host"), 1);
  host.to(kDevice);
  host.to(kDevice, /*non_blocking=*/true);  // the host's pages may move while they are read
  EXPECT_EQ(count_waits("copy to the device"), 2);
  x.nonzero();
  x.masked_select(x > 0);
  EXPECT_EQ(count_waits("aten::nonzero") + count_waits("aten::masked_select"), 2);
  x.index({x > 0});
  x.index({at::zeros({1}, at::kLong)});
  EXPECT_EQ(count_waits("aten::index"), 2);
  x.index({at::zeros({1}, here().dtype(at::kLong))});
  EXPECT_EQ(count_waits("aten::index"), 2);
  synchronize(kDevice);
  EXPECT_EQ(count_waits("the device"), 1);
  EXPECT_EQ(waits().at(0).place.find("pretend"), std::string::npos);
}

TEST_F(Accelerator, PinnedMemoryIsCopiedWithoutWaiting) {
  const Tensor host = at::ones({3}, pinned());
  ASSERT_TRUE(host.is_pinned());
  EXPECT_FALSE(at::ones({3}).is_pinned());
  const Tensor x = at::empty({3}, here());
  x.copy_(host, /*non_blocking=*/true);
  EXPECT_EQ(waits().size(), 0);
  EXPECT_EQ(first_of(x), 1);
  x.copy_(host);
  EXPECT_EQ(count_waits("copy to the device"), 1);
}

TEST_F(Accelerator, WhatTheHostReadsTooEarlyIsNotThereYet) {
  const Tensor x = at::ones({3}, here()), host = at::zeros({3}, pinned());
  host.copy_(x, /*non_blocking=*/true);
  x.fill_(2);  // comes after the copy
  EXPECT_TRUE(std::isnan(first_of(host)));
  StreamEvent event(kDevice);
  event.record(current_stream(kDevice));
  event.wait();
  EXPECT_EQ(count_waits("an event"), 1);
  EXPECT_EQ(first_of(host), 1);
}

TEST_F(Accelerator, AWaitForAnEventBehindWhichAStepWasIssuedIsAnotherKind) {
  StreamEvent event(kDevice);
  event.record(current_stream(kDevice));
  for (int step = 0; step < 2; ++step) {
    event.wait();
    RECORD_USER_SCOPE("optimizer");
  }
  EXPECT_EQ(count_waits("an event"), 2);
  event.wait();
  EXPECT_EQ(count_waits("an event"), 2);
  EXPECT_EQ(count_waits("an old event"), 1);
}

// Orders later work on `stream` after what the main stream was given.
void put_behind_main(const c10::Stream& stream) {
  StreamEvent issued(kDevice);
  issued.record(current_stream(kDevice));
  issued.make_wait(stream);
}

// Writes 1 to x on another stream.
StreamEvent written_beside(const Tensor& x, const Tensor& ones, const c10::Stream& stream) {
  put_behind_main(stream);
  const StreamScope scope(stream);
  x.copy_(ones, /*non_blocking=*/true);
  StreamEvent written(kDevice);
  written.record(stream);
  return written;
}

TEST_F(Accelerator, OtherStreamsAreAsLateAsTheyMayBe) {
  const Tensor ones = at::ones({3}, pinned()), x = at::zeros({3}, here());
  const StreamEvent written = written_beside(x, ones, side_stream(kDevice));
  EXPECT_EQ(first_of(x), 0);
  written.make_wait(current_stream(kDevice));
  EXPECT_EQ(first_of(x), 1);
}

TEST_F(Accelerator, AnEventWaitThatIsIgnoredIsSeen) {
  const Tensor ones = at::ones({3}, pinned()), x = at::zeros({3}, here());
  const StreamEvent written = written_beside(x, ones, side_stream(kDevice));
  ignore(Ignored::kEventWaits);
  written.make_wait(current_stream(kDevice));
  EXPECT_EQ(first_of(x), 0);
}

// The main stream may be late as well.
TEST_F(Accelerator, AStreamThatDoesNotWaitForTheMainOneIsRefused) {
  const Tensor ones = at::ones({3}, pinned()), host = at::zeros({3}, pinned()), x = at::zeros({3}, here());
  const c10::Stream beside = side_stream(kDevice);
  const auto reads = [&] {
    const StreamScope scope(beside);
    host.copy_(x, /*non_blocking=*/true);
  };
  const auto writes = [&] {
    const StreamScope scope(beside);
    x.copy_(ones, /*non_blocking=*/true);
  };
  EXPECT_THROW(reads(), c10::Error);
  EXPECT_THROW(writes(), c10::Error);
  put_behind_main(beside);
  EXPECT_NO_THROW(reads());
  EXPECT_NO_THROW(writes());
  // Another use by the main stream: what only reads needs no further event, what writes does.
  (x + 1).sum();
  EXPECT_NO_THROW(reads());
  EXPECT_THROW(writes(), c10::Error);
  x.add_(1);
  EXPECT_THROW(reads(), c10::Error);
  synchronize(kDevice);
  EXPECT_NO_THROW(writes());
}

TEST_F(Accelerator, AStreamWhoseEventWaitsAreIgnoredIsRefused) {
  ignore(Ignored::kEventWaitsOfSideStreams);
  const Tensor ones = at::ones({3}, pinned()), x = at::zeros({3}, here());
  EXPECT_THROW(written_beside(x, ones, side_stream(kDevice)), c10::Error);
}

TEST_F(Accelerator, AnEventTellsAStreamOnlyOfWhatCameBeforeIt) {
  const Tensor ones = at::ones({3}, pinned()), x = at::zeros({3}, here());
  const c10::Stream first = side_stream(kDevice), second = side_stream(kDevice);
  const StreamEvent written = written_beside(x, ones, first);
  // The event of a stream ordered after the main one carries that order on.
  written.make_wait(second);
  {
    const StreamScope scope(second);
    EXPECT_NO_THROW(x.copy_(ones, /*non_blocking=*/true));
  }
  x.zero_();
  written.make_wait(second);
  const StreamScope scope(second);
  EXPECT_THROW(x.copy_(ones, /*non_blocking=*/true), c10::Error);
}

// A block that a stream still reads when its owner frees it.
float read_after_free(bool is_recorded) {
  const Tensor host = at::zeros({3}, pinned());
  const c10::Stream beside = side_stream(kDevice);
  {
    const Tensor x = at::ones({3}, here());
    put_behind_main(beside);
    const StreamScope scope(beside);
    host.copy_(x, /*non_blocking=*/true);
    if (is_recorded) x.record_stream(beside);
  }
  at::full({3}, 7, here());  // takes the block when it is free
  StreamEvent read(kDevice);
  read.record(beside);
  read.wait();
  return first_of(host);
}

TEST_F(Accelerator, AFreedBlockIsKeptForTheStreamsThatWereRecorded) {
  EXPECT_EQ(read_after_free(true), 1);
  EXPECT_NE(read_after_free(false), 1);
  ignore(Ignored::kRecordStream);
  EXPECT_NE(read_after_free(true), 1);
}

TEST_F(Accelerator, AStreamsOwnBlocksAreReusedInItsOrder) {
  const Tensor ones = at::ones({3}, pinned()), host = at::zeros({3}, pinned());
  const c10::Stream beside = side_stream(kDevice);
  {
    const StreamScope scope(beside);
    const Tensor x = at::empty({3}, here());
    x.copy_(ones, /*non_blocking=*/true);
    host.copy_(x, /*non_blocking=*/true);
  }
  synchronize(kDevice);
  EXPECT_EQ(first_of(host), 1);
}

TEST_F(Accelerator, MemoryIsCounted) {
  reset_peak_memory(kDevice);
  const int64_t before = memory_stats(kDevice).allocated_bytes;
  {
    const Tensor kept = at::empty({1024}, here());
    EXPECT_EQ(memory_stats(kDevice).allocated_bytes, before + 4096);
    at::empty({2048}, here());
  }
  EXPECT_EQ(memory_stats(kDevice).allocated_bytes, before);
  EXPECT_EQ(memory_stats(kDevice).peak_allocated_bytes, before + 4096 + 8192);
  EXPECT_GE(memory_stats(kDevice).reserved_bytes, before + 4096 + 8192);
  // Only the allocator's numbers are read again: the device's own cost a call of the driver.
  MemoryStats stats;
  stats.used_bytes = stats.total_bytes = 7;
  update_allocator_stats(stats, kDevice);
  EXPECT_EQ(stats.peak_allocated_bytes, memory_stats(kDevice).peak_allocated_bytes);
  EXPECT_EQ(stats.used_bytes, 7);
  EXPECT_EQ(stats.total_bytes, 7);
}

TEST_F(Accelerator, BackwardRunsOnTheDevice) {
  const Tensor x = at::ones({3}, here()).requires_grad_(true);
  (x * x).sum().backward();
  EXPECT_EQ(x.grad().device(), kDevice);
  EXPECT_EQ(x.grad().sum().item<float>(), 6);
}

TEST_F(Accelerator, ThereMayBeSeveral) {
  if (num_devices() < 2) GTEST_SKIP() << "PRETEND_DEVICES is below 2";
  const at::Device second(at::kPrivateUse1, 1);
  const Tensor x = at::ones({3}, here()), y = at::ones({3}, here().device(second));
  EXPECT_EQ(y.device(), second);
  EXPECT_THROW(x + y, c10::Error);
  EXPECT_EQ((x.to(second) + y).sum().item<float>(), 6);
  const c10::DeviceGuard guard(second);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
}

}  // namespace
}  // namespace megalith::pretend
