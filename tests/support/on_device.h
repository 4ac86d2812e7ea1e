// Tests of operators on the CPU and on whatever accelerator there is.
//
//   using Swiglu = testing::OnDevice;
//   TEST_P(Swiglu, ForwardMatchesReference) { const Tensor y = swiglu(testing::randn({3, 14})); … }
//   MEGALITH_ON_EVERY_DEVICE(Swiglu);
//
// Tensors from the functions below are made on the CPU, so that every device computes with the same numbers, and moved
// to the device of the test. Without an accelerator there is no second form of a test.
#pragma once

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace megalith::testing {

// The device of the running test; the CPU for tests without this parameter.
inline at::Device& device_of_test() {
  static at::Device device(at::kCPU);
  return device;
}

class OnDevice : public ::testing::TestWithParam<at::Device> {
 protected:
  void SetUp() override { device_of_test() = GetParam(); }
  void TearDown() override { device_of_test() = at::kCPU; }
};

inline std::vector<at::Device> every_device() {
  std::vector<at::Device> devices{at::kCPU};
  const auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
  if (accelerator.has_value() && at::accelerator::deviceCount() > 0) devices.emplace_back(*accelerator, 0);
  return devices;
}

inline std::string name_of_device(const ::testing::TestParamInfo<at::Device>& info) {
  return c10::DeviceTypeName(info.param.type(), /*lower_case=*/true);
}

// Runs the suite's TEST_Ps on every device.
#define MEGALITH_ON_EVERY_DEVICE(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(On, suite, ::testing::ValuesIn(::megalith::testing::every_device()), \
                           ::megalith::testing::name_of_device)

inline at::Tensor here(const at::Tensor& x) { return x.to(device_of_test()); }

// Each makes what ATen's function of this name makes.
template <typename... Options>
at::Tensor randn(at::IntArrayRef sizes, Options... options) {
  return here(at::randn(sizes, options...));
}
template <typename... Options>
at::Tensor rand(at::IntArrayRef sizes, Options... options) {
  return here(at::rand(sizes, options...));
}
template <typename... Options>
at::Tensor zeros(at::IntArrayRef sizes, Options... options) {
  return here(at::zeros(sizes, options...));
}
template <typename... Options>
at::Tensor ones(at::IntArrayRef sizes, Options... options) {
  return here(at::ones(sizes, options...));
}
template <typename... Options>
at::Tensor full(at::IntArrayRef sizes, const at::Scalar& value, Options... options) {
  return here(at::full(sizes, value, options...));
}
template <typename T, typename... Options>
at::Tensor tensor(std::initializer_list<T> values, Options... options) {
  return here(at::tensor(values, options...));
}
template <typename T, typename... Options>
at::Tensor tensor(const std::vector<T>& values, Options... options) {
  return here(at::tensor(values, options...));
}
inline at::Tensor randint(int64_t low, int64_t high, at::IntArrayRef sizes) {
  return here(at::randint(low, high, sizes, at::kLong));
}
inline at::Tensor randperm(int64_t n) { return here(at::randperm(n)); }
inline at::Tensor arange(int64_t end) { return here(at::arange(end)); }
inline at::Tensor arange(int64_t begin, int64_t end) { return here(at::arange(begin, end)); }
inline at::Tensor linspace(double first, double last, int64_t count) { return here(at::linspace(first, last, count)); }
inline at::Tensor scalar_tensor(const at::Scalar& value, at::ScalarType dtype) {
  return here(at::scalar_tensor(value, dtype));
}

}  // namespace megalith::testing
