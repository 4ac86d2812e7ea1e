// Streams and events over c10's generic interface. On a CPU work is done when issued: waiting and ordering do nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>

namespace megalith {

c10::Stream current_stream(const c10::Device& device);

// From LibTorch's pool; high priority if others wait for the work.
c10::Stream side_stream(const c10::Device& device, bool has_high_priority = false);

// Blocks.
void synchronize(const c10::Device& device);

// While it lives, this thread's operators run on `stream`.
class StreamScope {
 public:
  explicit StreamScope(const c10::Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::Stream previous_;
};

// On the CPU, a point in time.
class StreamEvent {
 public:
  explicit StreamEvent(const c10::Device& device, bool has_timing = false);
  ~StreamEvent();
  StreamEvent(StreamEvent&&) noexcept;
  StreamEvent& operator=(StreamEvent&&) noexcept;

  void record(const c10::Stream& stream);
  // The stream waits, not the caller.
  void make_wait(const c10::Stream& stream) const;
  bool is_done() const;
  void wait() const;
  // Requires timing, and both events reached.
  double elapsed_ms(const StreamEvent& later) const;

 private:
  struct Accelerated;
  std::unique_ptr<Accelerated> event_;  // null on the CPU
  std::chrono::steady_clock::time_point recorded_at_{};
};

}  // namespace megalith
