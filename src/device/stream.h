// Streams and events over c10's generic interface. A CPU has one stream on which everything is done when issued; there,
// waiting and ordering do nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>

namespace megalith {

c10::Stream current_stream(const c10::Device& device);

// Another stream from LibTorch's pool, for copies and communication. Ask for high priority if others wait for the work.
c10::Stream side_stream(const c10::Device& device, bool has_high_priority = false);

// Blocks until everything issued on the device has run.
void synchronize(const c10::Device& device);

// Operators called by this thread run on `stream` while it lives.
class StreamScope {
 public:
  explicit StreamScope(const c10::Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::Stream previous_;
};

// A point in a stream to wait for. On the CPU, a point in time.
class StreamEvent {
 public:
  explicit StreamEvent(const c10::Device& device, bool has_timing = false);
  ~StreamEvent();
  StreamEvent(StreamEvent&&) noexcept;
  StreamEvent& operator=(StreamEvent&&) noexcept;

  void record(const c10::Stream& stream);
  // Does not block the caller.
  void make_wait(const c10::Stream& stream) const;
  bool is_done() const;
  void wait() const;
  // From this event to a later one; both recorded, made with timing, and reached.
  double elapsed_ms(const StreamEvent& later) const;

 private:
  struct Accelerated;
  std::unique_ptr<Accelerated> event_;  // null on the CPU
  std::chrono::steady_clock::time_point recorded_at_{};
};

}  // namespace megalith
