// Device choice, threads and deterministic mode.
#include "device/device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <thread>

#include "core/error.h"
#include "device/deterministic.h"
#include "device/own_products.h"
#include "device/stream.h"
#include "device/threads.h"

namespace megalith {
namespace {

// Sets or removes a variable of the environment while it lives.
class EnvironmentScope {
 public:
  EnvironmentScope(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~EnvironmentScope() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Device, AutoTakesAnAcceleratorWhenThereIsOne) {
  EXPECT_TRUE(select_device(DeviceChoice::kCpu, 0).is_cpu());
  EXPECT_EQ(select_device(DeviceChoice::kAuto, 0).is_cpu(), accelerator_count() == 0);
}

TEST(Device, AskingForAGpuThatIsMissingSaysWhatToDo) {
  try {
    (void)select_device(DeviceChoice::kGpu, accelerator_count());
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("accelerator"), std::string::npos);
    EXPECT_NE(error.remedy().find("--device cpu"), std::string::npos);
  }
}

TEST(Device, AProcessThatSeesOneGpuUsesItWhateverItsRank) {
  EXPECT_EQ(accelerator_index(/*local_rank=*/0, /*num_visible=*/8, /*num_of_machine=*/8), 0);
  EXPECT_EQ(accelerator_index(7, 8, 8), 7);
  EXPECT_EQ(accelerator_index(3, 1, 8), 0);
  EXPECT_EQ(accelerator_index(3, 1, 0), 0) << "a driver that lists nothing";
  EXPECT_EQ(accelerator_index(0, 1, 1), 0);
  EXPECT_THROW((void)accelerator_index(1, 1, 1), UserError) << "two ranks would share one GPU";
  EXPECT_THROW((void)accelerator_index(2, 2, 8), UserError);
}

TEST(Device, CpuFeaturesImplyOneAnother) {
  const CpuFeatures features = cpu_features();
  EXPECT_TRUE(features.avx2 || !features.avx512);
  EXPECT_TRUE(features.avx512 || !(features.avx512_bf16 || features.amx_bf16));
  EXPECT_EQ(has_native_bf16(c10::Device(c10::kCPU)), features.amx_bf16 || features.avx512_bf16 || features.arm_bf16);
  EXPECT_EQ(enable_amx(), features.amx_bf16);
  EXPECT_TRUE(features.avx512 || !has_own_fp32_products());
}

TEST(Device, DescriptionNamesProcessorAndMemory) {
  const std::string text = describe_device(c10::Device(c10::kCPU));
  EXPECT_EQ(text.rfind("CPU ", 0), 0u) << text;
  EXPECT_NE(text.find("iB"), std::string::npos) << text;
  EXPECT_EQ(text.find("own fp32 products") != std::string::npos, has_own_fp32_products()) << text;
}

TEST(Threads, DefaultIsTheShareOfARank) {
  const EnvironmentScope unset("OMP_NUM_THREADS", nullptr);
  const int cores = usable_cores();
  ASSERT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(default_num_threads(1), cores);
  EXPECT_EQ(default_num_threads(cores), 1);
  EXPECT_EQ(default_num_threads(10 * cores), 1);
}

TEST(Threads, FollowTheProcessorsOneIsAllowedToUse) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(Threads, OptionWinsOverEnvironment) {
  const int before = at::get_num_threads();
  {
    const EnvironmentScope three("OMP_NUM_THREADS", "3,2");
    EXPECT_EQ(default_num_threads(1), 3);
    EXPECT_EQ(set_num_threads({.num_threads = 2}, 1), 2);
    EXPECT_EQ(at::get_num_threads(), 2);
  }
  {
    const EnvironmentScope nonsense("OMP_NUM_THREADS", "many");
    EXPECT_EQ(default_num_threads(1), usable_cores());
  }
  at::set_num_threads(before);
}

TEST(Threads, WaitingThreadsMaySpinWhereEachHasAProcessor) {
  EXPECT_TRUE((ProcessorShare{.threads = 8, .processors = 8}.has_processor_for_each()));
  EXPECT_TRUE((ProcessorShare{.threads = 4, .ranks = 2, .processors = 8, .quota = 8}.has_processor_for_each()));
  EXPECT_TRUE((ProcessorShare{.threads = 8, .processors = 8, .others_load = 0.4}.has_processor_for_each()));
  EXPECT_TRUE((ProcessorShare{.threads = 1, .ranks = 8, .processors = 2}.has_processor_for_each()));  // no rank waits
  EXPECT_FALSE((ProcessorShare{.threads = 8, .ranks = 2, .processors = 8}.has_processor_for_each()));
  EXPECT_FALSE((ProcessorShare{.threads = 8, .processors = 8, .quota = 2.5}.has_processor_for_each()));
  EXPECT_FALSE((ProcessorShare{.threads = 8, .processors = 8, .others_load = 3}.has_processor_for_each()));
}

TEST(Threads, APersonsWaitPolicyStands) {
  const ProcessorShare crowded{.threads = 8, .processors = 2};
  const EnvironmentScope policy("OMP_WAIT_POLICY", "active");
  EXPECT_EQ(choose_thread_waiting(crowded), std::nullopt);
}

// Processor time of all threads, in seconds, while all but one of them wait at barriers for 0.2 s in all.
double time_of_waiting_threads() {
  const std::clock_t before = std::clock();
#pragma omp parallel num_threads(omp_get_num_procs())
  for (int round = 0; round < 200; ++round) {
#pragma omp single
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

// libgomp reads the environment when it is loaded, so this needs a process of its own.
TEST(Threads, WaitingThreadsSleepOnceTheyAreTold) {
  if (omp_get_num_procs() < 2) GTEST_SKIP() << "there is one processor";
  const EnvironmentScope policy("OMP_WAIT_POLICY", nullptr), spins("GOMP_SPINCOUNT", nullptr);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto note = choose_thread_waiting({.threads = 2, .processors = 1, .others_load = 1});
        std::cerr << note.value_or("nothing") << "\n";
        // Spinning takes 0.2 s of each processor but one, and far more than sleeping on a busy machine, too.
        const double busy_s = time_of_waiting_threads();
        std::cerr << busy_s << " s\n";
        std::_Exit(busy_s < 0.1 * (omp_get_num_procs() - 1) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "2 threads on 1 processor, which others keep busy \\(load 1\\)");
}

TEST(Threads, SingleThreadedScopeReachesNewThreads) {
  const int before = at::get_num_threads();
  {
    const SingleThreadedScope scope;
    EXPECT_EQ(at::get_num_threads(), 1);
    std::thread([] { EXPECT_EQ(at::get_num_threads(), 1); }).join();
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Deterministic, ModeIsSetAndTakenBack) {
  const EnvironmentScope unset("CUBLAS_WORKSPACE_CONFIG", nullptr);
  set_deterministic(true);
  EXPECT_TRUE(is_deterministic());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  set_deterministic(false);
  EXPECT_FALSE(is_deterministic());
}

// The same calls on the CPU and, where there is one, on an accelerator.
void use_streams(const c10::Device& device) {
  const c10::Stream main = current_stream(device), side = side_stream(device, true);
  EXPECT_EQ(main == side, device.is_cpu());
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  StreamEvent start(device, true), ready(device), end(device, true);
  start.record(main);
  at::Tensor x = at::ones({1 << 20}, options);
  ready.record(main);
  {
    const StreamScope scope(side);
    EXPECT_TRUE(current_stream(device) == side);
    ready.make_wait(side);
    x = x + 1;
    end.record(side);
  }
  EXPECT_TRUE(current_stream(device) == main);
  end.make_wait(main);
  EXPECT_EQ((x - 2).abs().max().item<float>(), 0);
  end.wait();
  EXPECT_TRUE(end.is_done());
  EXPECT_GE(start.elapsed_ms(end), 0);
  synchronize(device);
}

TEST(Stream, OrdersWorkOnTheCpu) { use_streams(c10::Device(c10::kCPU)); }

TEST(Stream, OrdersWorkOnAnAccelerator) {
  if (accelerator_count() == 0) GTEST_SKIP() << "no accelerator here";
  use_streams(select_device(DeviceChoice::kGpu, 0));
}

}  // namespace
}  // namespace megalith
