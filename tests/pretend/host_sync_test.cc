// Waits of the host where they are forbidden: on the pretend accelerator, and as LibTorch tells them on CUDA.
#include "device/host_sync.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "device/stream.h"
#include "device/transfer.h"

namespace megalith {
namespace {

const at::Device kPretendDevice(at::kPrivateUse1, 0);

// Text of the error; empty when there is none.
std::string said_by(const std::function<void()>& work) {
  try {
    without_host_sync(kPretendDevice, work);
  } catch (const HostSyncError& error) {
    return error.what();
  }
  return "";
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(HostSync, OperatorsAndCopiesThatDoNotWaitAreAllowed) {
  EXPECT_EQ(said_by([] {
              const at::Tensor x = sent_to(at::ones({4}), kPretendDevice);
              const HostCopy on_its_way((x * 2).sum());
            }),
            "");
}

TEST(HostSync, AWaitInsideNamesTheOperatorAndTheRanges) {
  const at::Tensor x = at::ones({4}, at::TensorOptions(kPretendDevice));
  const std::string said = said_by([&] {
    RECORD_USER_SCOPE("the planted range");
    (void)x.sum().item<float>();
  });
  EXPECT_TRUE(holds(said, "_local_scalar_dense")) << said;
  EXPECT_TRUE(holds(said, "the planted range")) << said;
  EXPECT_TRUE(holds(said_by([&] { (void)x.to(at::kCPU); }), "copy to the host"));
  EXPECT_TRUE(holds(said_by([&] { (void)x.nonzero(); }), "aten::nonzero"));
  EXPECT_TRUE(holds(said_by([] { synchronize(kPretendDevice); }), "all work of the device"));
  EXPECT_TRUE(holds(said_by([&] { (void)HostCopy(x).wait(); }), "an event"));
}

TEST(HostSync, WaitsOfBackwardAreSeenOnItsThread) {
  struct Waits : torch::autograd::Function<Waits> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      (void)gradients[0].sum().item<float>();
      return {gradients[0]};
    }
  };
  const at::Tensor x = at::ones({4}, at::TensorOptions(kPretendDevice)).requires_grad_();
  const std::string said = said_by([&] { Waits::apply(x).sum().backward(); });
  EXPECT_TRUE(holds(said, "_local_scalar_dense")) << said;
  EXPECT_TRUE(holds(said, "Waits")) << said;
}

// The text is that of c10::cuda::warn_or_error_on_sync(), which says nothing of the place.
TEST(HostSync, AnErrorOfLibTorchIsToldWithThePlaceItCameFrom) {
  const std::string said = said_by([] {
    RECORD_USER_SCOPE("outer");
    {
      RECORD_USER_SCOPE("inner");
      TORCH_CHECK(false, "called a synchronizing CUDA operation");
    }
  });
  EXPECT_TRUE(holds(said, "inner < outer")) << said;
}

TEST(HostSync, OtherErrorsPassAndWaitsAreAllowedAgain) {
  EXPECT_THROW(without_host_sync(kPretendDevice, [] { throw std::logic_error("another"); }), std::logic_error);
  const at::Tensor x = at::ones({4}, at::TensorOptions(kPretendDevice));
  EXPECT_EQ(x.sum().item<float>(), 4);
  // A CPU has nothing to wait for.
  without_host_sync(at::kCPU, [&] { EXPECT_EQ(x.sum().item<float>(), 4); });
}

}  // namespace
}  // namespace megalith
