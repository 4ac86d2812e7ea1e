// Streams of a pretend device. Work on the main stream (id 0) has run when it is issued. Other streams are as late as
// they may be: a task runs when something waits for it, so code that forgets to wait sees what was there before.
//
// The main stream too has tasks: copies to host memory, which arrive when the host waits. That a device's main stream
// may be late as well is held by order: its uses of memory are numbered, events carry the numbers, and another stream
// that touches a block before an event has told it of the main stream's last use is refused (memory.h).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace megalith::pretend {

constexpr c10::StreamId kMainStream = 0;

class Streams {
 public:
  c10::StreamId make();
  void push(c10::StreamId stream, std::function<void()> task);
  // Number of tasks that the stream was given so far.
  int64_t issued(c10::StreamId stream);
  bool is_idle(c10::StreamId stream);
  // Runs the stream's tasks in order, up to the number that was issued at some point, or all.
  void run_until(c10::StreamId stream, int64_t position);
  void run(c10::StreamId stream);
  void run_all();
  // Tasks that were not waited for never run; blocks that they would have freed stay taken.
  void forget_tasks();

  // The main stream's uses of memory: numbers the next one.
  int64_t use_on_main() { return ++main_uses_; }
  // The last of them that `stream` comes after.
  int64_t known_uses(c10::StreamId stream);
  // From now on `stream` comes after those up to `use`.
  void learn(c10::StreamId stream, int64_t use);
  // The host waited for `stream`: what it issues from now on comes after what that stream knew.
  void tell_host(c10::StreamId stream);
  void tell_host_of(int64_t use);

 private:
  struct Queue {
    std::deque<std::function<void()>> tasks;
    int64_t issued = 0, started = 0;
    int64_t known_uses = 0;
  };
  std::recursive_mutex mutex_;  // a task may wait for another stream's
  std::map<c10::StreamId, Queue> queues_;
  c10::StreamId made_ = 0;
  std::atomic<int64_t> main_uses_{0};
  int64_t known_to_host_ = 0;
};

Streams& streams_of(c10::DeviceIndex device);

// The number of devices: PRETEND_DEVICES, or 1.
c10::DeviceIndex num_devices();

// This thread's device, and its stream on a device.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::StreamId current_stream_id(c10::DeviceIndex device);
void set_current_stream_id(c10::DeviceIndex device, c10::StreamId stream);

// Mistakes that the accelerator makes on request, to see that tests catch them. The environment's PRETEND_IGNORE names
// them at the start: event_waits, event_waits_of_side_streams (so that the main stream is too late for them),
// record_stream.
enum class Ignored { kNothing, kEventWaits, kEventWaitsOfSideStreams, kRecordStream };
void ignore(Ignored what);
bool ignores(Ignored what);

}  // namespace megalith::pretend
