#include "gpu_kernels/emulation/machine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu_kernels/emulation/block.h"
#include "gpu_kernels/emulation/last_blocks.h"

namespace megalith::gpu_emulation {
namespace {

std::mutex settings_mutex;
Settings the_settings;

std::atomic<uint64_t> last_blocks{0};

// The fiber that runs on this host thread.
constinit thread_local Thread* running = nullptr;

std::atomic<void (*)(const std::function<void()>& launch)> runner{nullptr};

Block& block_of_this_thread() {
  thread_local Block block;
  return block;
}

// Why no chip of ours starts this launch; empty if allowed.
std::string why_not(dim3 grid, dim3 block, const Settings& settings) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (blocks == 0 || threads == 0) return "a launch of nothing";
  // A rule of ours, which lane() in ops/gpu/compiler.h counts on.
  if (block.y > 1 || block.z > 1) return "a block of more than one dim";
  if (threads > 1024) return "a block of " + std::to_string(threads) + " threads";
  if (grid.x > 0x7FFFFFFFu || grid.y > 0xFFFFu || grid.z > 0xFFFFu) return "too many blocks in one dim of the grid";
  // AMD's: the threads of a dim are counted in 32 bits.
  if (settings.wave_size == 64 && uint64_t{grid.x} * block.x >> 32 != 0)
    return "2^32 threads or more in one dim of the grid";
  return "";
}

}  // namespace

void resume(Thread& thread) {
  running = &thread;
  thread.fiber.resume();
}

void set_settings(const Settings& settings) {
  const std::lock_guard lock(settings_mutex);
  the_settings = settings;
}
void run_last_blocks(uint64_t blocks) { last_blocks = blocks; }
Settings settings() {
  const std::lock_guard lock(settings_mutex);
  return the_settings;
}

namespace {

void run_here(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  const Settings settings = gpu_emulation::settings();
  if (const std::string reason = why_not(grid, block, settings); !reason.empty()) {
    throw Refused(std::string(kernel) + ": invalid launch: " + reason);
  }
  Block& one = block_of_this_thread();
  one.begin_launch({.grid = grid,
                    .block = block,
                    .num_threads = block.x * block.y * block.z,
                    .settings = settings,
                    .shared_bytes = shared_bytes,
                    .thread = &thread});
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> order(last_blocks == 0 ? blocks : std::min(blocks, last_blocks.load()));
  std::iota(order.begin(), order.end(), blocks - order.size());
  std::mt19937_64 random(settings.order_seed);
  if (settings.order_seed != 0) std::shuffle(order.begin(), order.end(), random);
  std::string refusal;
  for (size_t i = 0; i < order.size() && refusal.empty(); ++i) {
    refusal = one.run(order[i], i % settings.num_unordered_blocks, random);
  }
  one.end_launch();
  if (!refusal.empty()) throw Refused(std::string(kernel) + ": " + refusal);
}

}  // namespace

void run_launches_through(void (*run)(const std::function<void()>& launch)) { runner = run; }

void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  const auto launch = [=] { run_here(kernel, grid, block, shared_bytes, thread); };
  const auto through = runner.load();
  through != nullptr ? through(launch) : launch();
}

Sanitizer sanitizer() {
#if defined(MEGALITH_EMULATION_THREAD_SANITIZER)
  return Sanitizer::kThread;
#elif defined(MEGALITH_EMULATION_ADDRESS_SANITIZER)
  return Sanitizer::kAddress;
#else
  return Sanitizer::kNone;
#endif
}

const Place& place() { return running->place; }
int wave_size() { return running->of->wave_size(); }
int current_lane() { return static_cast<int>(running->number) % wave_size(); }
void sync_block(Line line) { running->of->wait_at_barrier(*running, line); }
void* shared_array(const void* declaration, size_t bytes) {
  return running->of->shared_array(*running, declaration, bytes);
}
void* dynamic_shared() { return running->of->dynamic_shared(); }
uint64_t exchange(ExchangeKind kind, uint64_t word, int source_lane, Line line) {
  return running->of->exchange(*running, kind, word, source_lane, line);
}

void check_alignment(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  running->of->refuse(*running, "an access of %zu bytes at an address that is not a multiple of them", bytes);
}

}  // namespace megalith::gpu_emulation
