// Memory of pretend devices, which is the host's. Every bit of a fresh or freed block is set, which is NaN in every
// floating-point dtype. A freed block goes at once to the next who asks on the same stream, as LibTorch's allocators
// for devices do, unless record_stream() said that another stream uses it: then when that stream has passed this point.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <vector>

namespace megalith::pretend {

c10::DeviceAllocator& device_allocator();
void record_stream(const void* block, c10::StreamId stream);

// This thread's stream reads or writes the block, by what is issued now. c10::Error: it is not the main stream, and no
// event orders it after the main stream's last write (for a write: last use) of the block.
void note_use(const void* block, bool is_written);

// ---- For graphs, which have pools of memory ----

// From now on the device's memory comes from the pool, and stays in it, until end_pool(). Who has entered a pool leaves
// it once; when all have, its memory is anybody's.
void enter_pool(c10::DeviceIndex device, uint64_t pool);
void end_pool(c10::DeviceIndex device);
void leave_pool(uint64_t pool);

// Contents of the device's blocks in use. restore() writes them to the blocks that are still in use, and NaN to all
// others.
using Contents = std::map<void*, std::vector<char>>;
Contents contents_of(c10::DeviceIndex device);
void restore(c10::DeviceIndex device, const Contents& contents);

// Host memory that copies need not wait for.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

}  // namespace megalith::pretend
