// The emulation itself: it runs what chips run, and refuses what they do not allow.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ops/gpu/block_sum.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {
namespace {

using gpu_emulation::Refused;

// Why the kernel is refused; empty when it runs.
template <typename Kernel>
std::string refusal_of(Kernel kernel, dim3 threads, int wave_size = 32, dim3 grid = 1, size_t shared_bytes = 0) {
  gpu_emulation::set_settings({.wave_size = wave_size});
  try {
    gpu_emulation::run("kernel", grid, threads, shared_bytes, kernel);
    return "";
  } catch (const Refused& refused) {
    return refused.what();
  }
}

::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' does not say '" << part << "'";
}

void block_results(int* sums, int* maxima, unsigned* votes) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  sums[i] = sum_over_block(i);
  maxima[i] = max_over_block(i);
  const uint64_t odd = vote(i % 2 == 1);
  votes[i] = static_cast<unsigned>(__builtin_popcountll(odd)) + static_cast<unsigned>(shuffle(i, 3) % 64) * 100;
}

TEST(Emulation, ExchangesAndBarriersGiveEveryThreadTheResult) {
  for (const int wave_size : {32, 64}) {
    for (const uint64_t seed : {0, 7}) {
      gpu_emulation::set_settings({.wave_size = wave_size, .order_seed = seed});
      for (const int threads : {64, 192, 1024}) {
        std::vector<int> sums(2 * threads), maxima(2 * threads);
        std::vector<unsigned> votes(2 * threads);
        launch("block_results", block_results, 2, threads, 0, nullptr, sums.data(), maxima.data(), votes.data());
        for (int i = 0; i < 2 * threads; ++i) {
          const int first = i / threads * threads, last = first + threads - 1;
          ASSERT_EQ(sums[i], (first + last) * threads / 2);
          ASSERT_EQ(maxima[i], last);
          ASSERT_EQ(votes[i], static_cast<unsigned>(wave_size / 2) + (i / wave_size * wave_size + 3) % 64 * 100);
        }
      }
    }
  }
}

TEST(Emulation, MaximumKeepsNaN) {
  std::vector<float> values(64);
  gpu_emulation::set_settings({});
  gpu_emulation::run("maximum", 1, 64, 0, [&] {
    values[threadIdx.x] = max_over_block(threadIdx.x == 40 ? std::nanf("") : static_cast<float>(threadIdx.x));
  });
  for (const float value : values) ASSERT_TRUE(std::isnan(value));
}

TEST(Emulation, OrdersArePermutationsAndDependOnTheSeedOnly) {
  const auto order_of = [](uint64_t seed) {
    gpu_emulation::set_settings({.order_seed = seed});
    std::vector<unsigned> order;
    gpu_emulation::run("order", 5, 64, 0, [&] { order.push_back(blockIdx.x * 64 + threadIdx.x); });
    return order;
  };
  const std::vector<unsigned> plain = order_of(0), one = order_of(1), two = order_of(2);
  for (unsigned i = 0; i < 5 * 64; ++i) ASSERT_EQ(plain[i], i);
  EXPECT_EQ(std::set(one.begin(), one.end()).size(), 5 * 64u);
  EXPECT_NE(one, plain);
  EXPECT_NE(one, two);
  EXPECT_EQ(one, order_of(1));
}

TEST(Emulation, SharedMemoryBeginsAsNaNInEveryBlock) {
  gpu_emulation::set_settings({});
  int num_nan = 0;
  gpu_emulation::run("shared", 3, 32, 64 * sizeof(float), [&] {
    MEGALITH_SHARED(float, fixed, 32);
    MEGALITH_DYNAMIC_SHARED(float, dynamic);
    num_nan += std::isnan(fixed[threadIdx.x]) + std::isnan(dynamic[threadIdx.x + 32]);
    fixed[threadIdx.x] = dynamic[threadIdx.x + 32] = 1;
  });
  EXPECT_EQ(num_nan, 3 * 32 * 2);
}

TEST(Emulation, IntegerAtomicsCount) {
  gpu_emulation::set_settings({.order_seed = 3});
  int count = 0, largest = -1;
  gpu_emulation::run("atomics", 4, 96, 0, [&] {
    atomicAdd(&count, 2);
    atomicMax(&largest, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
  });
  EXPECT_EQ(count, 2 * 4 * 96);
  EXPECT_EQ(largest, 4 * 96 - 1);
}

TEST(Emulation, SeveralHostThreadsLaunchAtOnce) {
  gpu_emulation::set_settings({});
  std::vector<std::vector<int>> sums(3, std::vector<int>(20));
  std::vector<std::thread> hosts;
  for (std::vector<int>& own : sums) {
    hosts.emplace_back([&own] {
      for (int& sum : own) {
        gpu_emulation::run("sum", 1, 128, 0, [&] {
          const int result = sum_over_block(static_cast<int>(threadIdx.x));
          if (threadIdx.x == 0) sum = result;
        });
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  for (const std::vector<int>& own : sums) EXPECT_EQ(own, std::vector<int>(20, 127 * 128 / 2));
}

TEST(Emulation, RefusesThreadsThatEndWhileOthersWait) {
  const std::string text = refusal_of(
      [] {
        if (threadIdx.x < 5) return;
        __syncthreads();
      },
      64);
  EXPECT_TRUE(says(text, "kernel: 5 of 64 threads have ended while others wait at the barrier"));
  EXPECT_TRUE(says(text, "emulation_test.cc:"));
}

TEST(Emulation, RefusesDifferentBarriersInOneBlock) {
  // Not in a macro: all of that is one line.
  const auto kernel = [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_TRUE(says(refusal_of(kernel, 64), "threads of one block wait at different barriers"));
}

TEST(Emulation, RefusesExchangesWithoutAllLanes) {
  EXPECT_TRUE(says(refusal_of(
                       [] {
                         if (threadIdx.x != 9) shuffle_xor(1, 1);
                       },
                       32),
                   "but lane 9 has ended"));
  EXPECT_TRUE(says(refusal_of(
                       [] {
                         if (threadIdx.x == 2) __syncthreads();
                         shuffle_xor(1, 1);
                       },
                       32),
                   "but lane 2 waits at the barrier"));
  EXPECT_TRUE(says(refusal_of(
                       [] {
                         if (threadIdx.x % 2 == 0) {
                           vote(true);
                         } else {
                           shuffle(1, 0);
                         }
                       },
                       32),
                   "lanes of one wave exchange values at different lines"));
  // 48 threads are a wave and a half: lane 8 of the second one would read from a lane that is not there.
  EXPECT_TRUE(says(refusal_of([] { shuffle_xor(1, 16); }, 48), "reads from lane 16 of a wave of 16"));
  EXPECT_EQ(refusal_of([] { shuffle_xor(1, 31); }, 64, 32), "");
  EXPECT_TRUE(says(refusal_of([] { shuffle_xor(1, 32); }, 64, 32), "of a wave of 32"));
  EXPECT_EQ(refusal_of([] { shuffle_xor(1, 32); }, 64, 64), "");
}

TEST(Emulation, RefusesWideAccessesThatAreNotAligned) {
  alignas(16) static float values[8] = {};
  EXPECT_EQ(refusal_of([] { load_vector<4>(values + 4); }, 1), "");
  EXPECT_TRUE(says(refusal_of([] { load_vector<4>(values + 1); }, 1), "an access of 16 bytes at an address"));
  EXPECT_TRUE(says(refusal_of([] { store_vector(values + 1, Vector<float, 2>{}); }, 1), "an access of 8 bytes"));
}

TEST(Emulation, RefusesLaunchesBeyondWhatChipsAllow) {
  const auto nothing = [] {};
  EXPECT_TRUE(says(refusal_of(nothing, 0), "invalid launch: a launch of nothing"));
  EXPECT_TRUE(says(refusal_of(nothing, 32, 32, 0), "a launch of nothing"));
  EXPECT_TRUE(says(refusal_of(nothing, 1025), "a block of 1025 threads"));
  EXPECT_TRUE(says(refusal_of(nothing, dim3(32, 2)), "a block of more than one dim"));
  EXPECT_TRUE(says(refusal_of(nothing, 32, 32, dim3(1, 65536)), "too many blocks"));
  EXPECT_TRUE(says(refusal_of(nothing, 1024, 64, dim3(1u << 22)), "2^32 threads"));
  EXPECT_EQ(refusal_of(nothing, 1, 64, 1, 64 << 10), "");
  EXPECT_TRUE(says(refusal_of(nothing, 1, 64, 1, (64 << 10) + 16), "bytes of shared memory"));
  EXPECT_TRUE(says(refusal_of(
                       [] {
                         MEGALITH_SHARED(double, large, 6145);
                         large[0] = 1;
                       },
                       1),
                   "more than 49152 bytes"));
}

TEST(Emulation, RunsAgainAfterARefusal) {
  EXPECT_NE(refusal_of(
                [] {
                  if (sum_over_block(threadIdx.x) > 0 && threadIdx.x > 0) __syncthreads();
                },
                64),
            "");
  EXPECT_EQ(refusal_of([] { sum_over_block(threadIdx.x); }, 64), "");
}

}  // namespace
}  // namespace megalith::ops::gpu
