// See memory.h.
#include "pretend/accelerator/memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kGranularity = 512;  // bytes; sizes are rounded up to it, as on a device
constexpr size_t kTotalBytes = size_t{80} << 30;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct Block {
  void* data = nullptr;
  size_t bytes = 0;  // rounded
  c10::DeviceIndex device = 0;
  c10::StreamId stream = kMainStream;    // on which it was asked for
  uint64_t pool = 0;                     // of a graph; 0: of none
  std::set<c10::StreamId> users;         // others that were recorded
  int64_t last_write = 0, last_use = 0;  // of the main stream's uses of memory
};

void make_nan(const Block& block) { std::memset(block.data, 0xFF, block.bytes); }

// In the order of the block's own stream. A graph's memory changes hands when the graph is replayed; once captured,
// what the host frees of it is NaN at once, and what a replay reads it has written before.
void make_nan_in_order(const Block& block) {
  if (block.stream == kMainStream || block.pool != 0) {
    make_nan(block);
    if (block.pool != 0) keep_memory_in_graph(block.device, [block] { make_nan(block); });
  } else {
    streams_of(block.device).push(block.stream, [block] { make_nan(block); });
  }
}

void* from_the_host(size_t bytes) {
  void* data = std::aligned_alloc(kGranularity, bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const c10::DeviceIndex device = current_device();
    const c10::Device where(c10::kPrivateUse1, device);
    if (num_bytes == 0) return {nullptr, where};
    check_stream_of_graph(device);
    Block block{.bytes = (num_bytes + kGranularity - 1) / kGranularity * kGranularity,
                .device = device,
                .stream = current_stream_id(device)};
    // Until now the main stream may have used it for something else.
    if (block.stream == kMainStream) block.last_write = block.last_use = streams_of(device).use_on_main();
    {
      const std::lock_guard lock(mutex_);
      block.pool = pool_of_[device];
      std::vector<void*>& free = free_[{device, block.stream, block.bytes, block.pool}];
      DeviceStats& stats = stats_[device];
      if (free.empty()) {
        block.data = from_the_host(block.bytes);
        stats.reserved_bytes[kAll].increase(block.bytes);
      } else {
        block.data = free.back();
        free.pop_back();
      }
      stats.allocated_bytes[kAll].increase(block.bytes);
      live_.emplace(block.data, block);
    }
    make_nan_in_order(block);
    // Memory that a running operator asks for is written at once.
    if (is_at_work() && block.stream != kMainStream) streams_of(device).run(block.stream);
    return {block.data, block.data, &release, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { add_user(data.get(), stream.id()); }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    const std::lock_guard lock(mutex_);
    for (auto& [key, free] : free_) {
      if (std::get<3>(key) != 0) continue;  // a graph's addresses stay
      for (void* data : free) {
        stats_[std::get<0>(key)].reserved_bytes[kAll].decrease(std::get<2>(key));
        std::free(data);
      }
      free.clear();
    }
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    stats_[device].allocated_bytes[kAll].reset_accumulated();
    stats_[device].reserved_bytes[kAll].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    stats_[device].allocated_bytes[kAll].reset_peak();
    stats_[device].reserved_bytes[kAll].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return {kTotalBytes - static_cast<size_t>(stats_[device].reserved_bytes[kAll].current), kTotalBytes};
  }

  void add_user(const void* data, c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found != live_.end() && stream != found->second.stream) found->second.users.insert(stream);
  }

  void note_use(const void* data, bool is_written) {
    const c10::DeviceIndex device = device_of(data);
    if (device < 0) return;
    // Not under the lock: a stream's tasks come back here.
    const c10::StreamId stream = current_stream_id(device);
    Streams& streams = streams_of(device);
    const int64_t use = stream == kMainStream ? streams.use_on_main() : 0;
    const int64_t known = streams.known_uses(stream);
    const std::lock_guard lock(mutex_);
    Block& block = live_.at(data);
    if (stream == kMainStream) {
      block.last_use = use;
      if (is_written) block.last_write = use;
      return;
    }
    TORCH_CHECK((is_written ? block.last_use : block.last_write) <= known, "stream ", stream, " of device ",
                int{device}, is_written ? " writes" : " reads", " memory that the main stream still ",
                is_written ? "uses" : "writes", ": no event makes it wait for that");
  }

  void enter_pool(c10::DeviceIndex device, uint64_t pool) {
    const std::lock_guard lock(mutex_);
    pool_of_[device] = pool;
    ++members_[pool];
  }
  void end_pool(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    pool_of_[device] = 0;
  }
  void leave_pool(uint64_t pool) {
    const std::lock_guard lock(mutex_);
    if (--members_.at(pool) > 0) return;
    for (auto& [data, block] : live_) {
      if (block.pool == pool) block.pool = 0;
    }
    for (auto& [key, free] : free_) {
      const auto& [device, stream, bytes, of] = key;
      if (of != pool) continue;
      std::vector<void*>& common = free_[{device, stream, bytes, 0}];
      common.insert(common.end(), free.begin(), free.end());
      free.clear();
    }
  }

  Contents contents_of(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    Contents contents;
    for (const auto& [data, block] : live_) {
      const char* const first = static_cast<const char*>(block.data);
      if (block.device == device) contents.emplace(block.data, std::vector<char>(first, first + block.bytes));
    }
    return contents;
  }
  void restore(c10::DeviceIndex device, const Contents& contents) {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, block] : live_) {
      if (block.device != device) continue;
      const auto found = contents.find(block.data);
      if (found == contents.end()) {
        make_nan(block);
      } else {
        std::memcpy(block.data, found->second.data(), block.bytes);
      }
    }
  }

 private:
  // -1 for what is not the beginning of a block.
  c10::DeviceIndex device_of(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    return found == live_.end() ? c10::DeviceIndex{-1} : found->second.device;
  }

  static void release(void* data) { static_cast<DeviceMemory&>(device_allocator()).free_block(data); }

  // Not under the lock when streams are told: their tasks come back here.
  void free_block(void* data) {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = live_.find(data);
      block = std::move(found->second);
      live_.erase(found);
      stats_[block.device].allocated_bytes[kAll].decrease(block.bytes);
    }
    Streams& streams = streams_of(block.device);
    std::erase_if(block.users, [&](c10::StreamId user) { return streams.is_idle(user); });
    if (block.users.empty()) return make_available(block);
    const auto left = std::make_shared<std::atomic<size_t>>(block.users.size());
    for (const c10::StreamId user : block.users) {
      streams.push(user, [this, block, left] {
        if (--*left == 0) make_available(block);
      });
    }
  }

  void make_available(const Block& block) {
    make_nan_in_order(block);
    const std::lock_guard lock(mutex_);
    free_[{block.device, block.stream, block.bytes, block.pool}].push_back(block.data);
  }

  std::mutex mutex_;
  std::unordered_map<const void*, Block> live_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t, uint64_t>, std::vector<void*>> free_;
  std::map<c10::DeviceIndex, uint64_t> pool_of_;  // that the device's memory comes from now
  std::map<uint64_t, int> members_;               // of each pool
  std::map<c10::DeviceIndex, DeviceStats> stats_;
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    refuse_in_own_graph(current_device(), "an allocation of pinned memory");
    if (num_bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    const size_t bytes = (num_bytes + kGranularity - 1) / kGranularity * kGranularity;
    void* data = from_the_host(bytes);
    std::memset(data, 0xFF, bytes);
    const std::lock_guard lock(mutex_);
    ends_[static_cast<const char*>(data)] = static_cast<const char*>(data) + bytes;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }

  bool holds(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto after = ends_.upper_bound(static_cast<const char*>(address));
    return after != ends_.begin() && address < std::prev(after)->second;
  }

 private:
  static void release(void* data) {
    auto& self = static_cast<PinnedMemory&>(pinned_allocator());
    {
      const std::lock_guard lock(self.mutex_);
      self.ends_.erase(static_cast<const char*>(data));
    }
    std::free(data);
  }

  std::mutex mutex_;
  std::map<const char*, const char*> ends_;  // of blocks by their beginnings
};

}  // namespace

// Both outlive every tensor.
c10::DeviceAllocator& device_allocator() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}
c10::Allocator& pinned_allocator() {
  static auto* const memory = new PinnedMemory;
  return *memory;
}

void record_stream(const void* block, c10::StreamId stream) {
  if (ignores(Ignored::kRecordStream)) return;
  static_cast<DeviceMemory&>(device_allocator()).add_user(block, stream);
}

void note_use(const void* block, bool is_written) {
  static_cast<DeviceMemory&>(device_allocator()).note_use(block, is_written);
}

void enter_pool(c10::DeviceIndex device, uint64_t pool) {
  static_cast<DeviceMemory&>(device_allocator()).enter_pool(device, pool);
}
void end_pool(c10::DeviceIndex device) { static_cast<DeviceMemory&>(device_allocator()).end_pool(device); }
void leave_pool(uint64_t pool) { static_cast<DeviceMemory&>(device_allocator()).leave_pool(pool); }
Contents contents_of(c10::DeviceIndex device) {
  return static_cast<DeviceMemory&>(device_allocator()).contents_of(device);
}
void restore(c10::DeviceIndex device, const Contents& contents) {
  static_cast<DeviceMemory&>(device_allocator()).restore(device, contents);
}

bool is_pinned(const void* address) { return static_cast<PinnedMemory&>(pinned_allocator()).holds(address); }

}  // namespace megalith::pretend
