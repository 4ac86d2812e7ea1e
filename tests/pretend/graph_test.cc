// Graphs (device/graph.h) on the pretend accelerator: what is kept, what is read anew, what is refused.
#include "device/graph.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "device/memory.h"
#include "device/stream.h"
#include "device/transfer.h"
#include "ops/dropout/dropout.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

using at::Tensor;

const at::Device kGraphDevice(at::kPrivateUse1, 0);

at::TensorOptions on_graph_device(at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions(kGraphDevice).dtype(dtype);
}

// By its address, which is the host's: copies would wait.
float first_number(const Tensor& x) { return *static_cast<const float*>(x.const_data_ptr()); }

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override { forget_waits(); }
  void TearDown() override { streams_of(0).run_all(); }

  // On a stream of its own, in order with the main one.
  void capture(DeviceGraph& graph, const std::function<void()>& work) {
    StreamEvent before(kGraphDevice), after(kGraphDevice);
    before.record(current_stream(kGraphDevice));
    before.make_wait(beside_);
    {
      const StreamScope scope(beside_);
      graph.capture(work);
    }
    after.record(beside_);
    after.make_wait(current_stream(kGraphDevice));
  }

  c10::Stream beside_ = side_stream(kGraphDevice);
};

// Operators without a graph, on the stream that graphs are captured on.
TEST_F(Graphs, OperatorsRunOnAStreamOfTheirOwn) {
  const Tensor x = at::full({3}, 2.0, on_graph_device());
  StreamEvent before(kGraphDevice), after(kGraphDevice);
  before.record(current_stream(kGraphDevice));
  before.make_wait(beside_);
  Tensor y;
  {
    const StreamScope scope(beside_);
    y = ((x + 1) * (x + 2)).exp().log();
    after.record(beside_);
  }
  after.make_wait(current_stream(kGraphDevice));
  EXPECT_NEAR((y + 0).sum().item<float>(), 36, 1e-4);
}

TEST_F(Graphs, AreThereForThisDeviceOnly) {
  EXPECT_TRUE(can_capture_graphs(kGraphDevice));
  EXPECT_FALSE(can_capture_graphs(at::kCPU));
}

TEST_F(Graphs, ACaptureRunsNothingAndAReplayDoes) {
  const Tensor x = at::full({3}, 2.0, on_graph_device());
  Tensor y;
  DeviceGraph graph(kGraphDevice, nullptr);
  capture(graph, [&] {
    EXPECT_TRUE(is_capturing_graph());
    x.add_(1);
    y = x * x;
  });
  EXPECT_FALSE(is_capturing_graph());
  EXPECT_EQ(first_number(x), 2);
  EXPECT_TRUE(std::isnan(first_number(y)));
  graph.replay();
  EXPECT_EQ(first_number(x), 3);
  EXPECT_EQ(first_number(y), 9);
  graph.replay();
  EXPECT_EQ(first_number(y), 16);
  EXPECT_TRUE(waits().empty());
}

TEST_F(Graphs, ReadTheNumbersOfAddressesAndKeepThoseOfTheHost) {
  const Tensor of_device = at::full({}, 2.0, on_graph_device());
  double of_host = 2;
  Tensor y;
  DeviceGraph graph(kGraphDevice, nullptr);
  capture(graph, [&] { y = at::ones({3}, on_graph_device()) * of_device * of_host; });
  of_device.fill_(5);
  of_host = 7;
  graph.replay();
  EXPECT_EQ(first_number(y), 10) << "the host's 2 is part of the graph";
}

TEST_F(Graphs, KeepTheLaunchesOfKernels) {
  const Tensor x = at::ones({4, 8}, on_graph_device()), row_ids = at::arange(4, on_graph_device(at::kLong));
  Tensor y;
  DeviceGraph graph(kGraphDevice, nullptr);
  capture(graph, [&] { y = ops::dropout(x, row_ids, 0, 0.5, 99); });
  for (const int64_t first : {0, 4, 100}) {
    row_ids.copy_(at::arange(first, first + 4, on_graph_device(at::kLong)));
    graph.replay();
    EXPECT_TRUE(at::equal(y.to(at::kCPU), ops::dropout(x, row_ids, 0, 0.5, 99).to(at::kCPU))) << first;
  }
}

TEST_F(Graphs, KeepBackwardToo) {
  const Tensor x = at::full({3}, 3.0, on_graph_device()), gradient = at::zeros({3}, on_graph_device());
  DeviceGraph graph(kGraphDevice, nullptr);
  capture(graph, [&] {
    const Tensor leaf = x.detach().requires_grad_(true);
    (leaf * leaf).sum().backward();
    gradient.add_(leaf.grad());
  });
  graph.replay();
  x.fill_(5);
  graph.replay();
  EXPECT_EQ(first_number(gradient), 6 + 10);
}

TEST_F(Graphs, HaveMemoryThatNobodyElseGets) {
  DeviceGraph graph(kGraphDevice, nullptr);
  const void* address = nullptr;
  Tensor y;
  capture(graph, [&] {
    Tensor x = at::ones({1000}, on_graph_device());
    address = x.const_data_ptr();
    y = x + 1;
    x = Tensor();
    y = y + at::ones({1000}, on_graph_device());  // in the memory of x
  });
  const StreamScope scope(beside_);
  for (int i = 0; i < 4; ++i) EXPECT_NE(at::empty({1000}, on_graph_device()).const_data_ptr(), address);
}

TEST_F(Graphs, MayShareMemoryOfWhichNothingIsKept) {
  DeviceGraph one(kGraphDevice, nullptr);
  Tensor of_one, of_other;
  const void* scratch = nullptr;
  capture(one, [&] {
    Tensor x = at::ones({1000}, on_graph_device());
    scratch = x.const_data_ptr();
    of_one = x.sum();
  });
  DeviceGraph other(kGraphDevice, &one);
  capture(other, [&] {
    Tensor x = at::full({1000}, 2.0, on_graph_device());
    EXPECT_EQ(x.const_data_ptr(), scratch);
    of_other = x.sum();
  });
  one.replay();
  other.replay();
  EXPECT_EQ(first_number(of_other), 2000);
  EXPECT_EQ(first_number(of_one), 1000);
}

// Work whose result would be wrong, or an error, on a GPU.
TEST_F(Graphs, RefuseWhatAGraphCannotHold) {
  const Tensor x = at::ones({3}, on_graph_device()), pageable = at::ones({3}), pinned = at::ones({3}).pin_memory();
  const c10::Stream another = side_stream(kGraphDevice);
  StreamEvent of_before(kGraphDevice);
  of_before.record(current_stream(kGraphDevice));
  const std::pair<const char*, std::function<void()>> all[] = {
      {"a number is read", [&] { x.sum().item<float>(); }},
      {"a copy from pageable memory", [&] { pageable.to(kGraphDevice); }},
      {"a copy from pinned memory, whose address means nothing later", [&] { x.copy_(pinned, true); }},
      {"pinned memory", [&] { sent_to(pageable, kGraphDevice); }},
      {"a result whose size is not known", [&] { x.nonzero(); }},
      {"a wait for an event", [&] { of_before.wait(); }},
      {"a stream that waits for what is not in the graph", [&] { of_before.make_wait(beside_); }},
      {"work on another stream",
       [&] {
         const StreamScope scope(another);
         x.add_(1);
       }},
      {"memory of another stream",
       [&] {
         const StreamScope scope(another);
         at::empty({3}, on_graph_device());
       }},
  };
  for (const auto& [what, work] : all) {
    DeviceGraph graph(kGraphDevice, nullptr);
    EXPECT_THROW(capture(graph, work), c10::Error) << what;
    EXPECT_FALSE(is_capturing_graph()) << what;
  }
  DeviceGraph graph(kGraphDevice, nullptr);
  EXPECT_THROW(graph.capture([] {}), c10::Error) << "the main stream";
  EXPECT_THROW(graph.replay(), c10::Error) << "nothing was captured";
}

TEST_F(Graphs, LetNobodyAskEventsWhileOneIsCaptured) {
  StreamEvent event(kGraphDevice);
  event.record(current_stream(kGraphDevice));
  EXPECT_TRUE(event.is_done());
  bool was_done = true;
  DeviceGraph graph(kGraphDevice, nullptr);
  capture(graph, [&] { std::thread([&] { was_done = event.is_done(); }).join(); });
  EXPECT_FALSE(was_done);
  EXPECT_TRUE(event.is_done());
}

}  // namespace
}  // namespace megalith::pretend
