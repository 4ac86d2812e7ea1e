// See streams.h.
#include "pretend/accelerator/streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

namespace megalith::pretend {
namespace {

constexpr c10::DeviceIndex kMostDevices = 16;

std::atomic<Ignored>& ignored() {
  static std::atomic<Ignored> what = [] {
    const char* text = std::getenv("PRETEND_IGNORE");
    const std::string asked = text == nullptr ? "" : text;
    if (asked == "event_waits") return Ignored::kEventWaits;
    if (asked == "event_waits_of_side_streams") return Ignored::kEventWaitsOfSideStreams;
    if (asked == "record_stream") return Ignored::kRecordStream;
    return Ignored::kNothing;
  }();
  return what;
}

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kMostDevices> streams_of_thread{};

}  // namespace

c10::StreamId Streams::make() {
  const std::lock_guard lock(mutex_);
  return ++made_;
}

void Streams::push(c10::StreamId stream, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[stream];
  queue.tasks.push_back(std::move(task));
  ++queue.issued;
}

int64_t Streams::issued(c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  return queues_[stream].issued;
}

bool Streams::is_idle(c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  return queues_[stream].tasks.empty();
}

void Streams::run_until(c10::StreamId stream, int64_t position) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[stream];
  while (!queue.tasks.empty() && queue.started < position) {
    const std::function<void()> task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    ++queue.started;
    task();
  }
}

void Streams::run(c10::StreamId stream) { run_until(stream, std::numeric_limits<int64_t>::max()); }

void Streams::run_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, queue] : queues_) run(stream);
}

void Streams::forget_tasks() {
  std::map<c10::StreamId, Queue> forgotten;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [stream, queue] : queues_) {
      forgotten[stream].tasks.swap(queue.tasks);
      queue.started = queue.issued;
    }
  }
}  // the memory they held is freed here, which may give streams new tasks

int64_t Streams::known_uses(c10::StreamId stream) {
  if (stream == kMainStream) return main_uses_;
  const std::lock_guard lock(mutex_);
  return std::max(queues_[stream].known_uses, known_to_host_);
}

void Streams::learn(c10::StreamId stream, int64_t use) {
  const std::lock_guard lock(mutex_);
  int64_t& known = queues_[stream].known_uses;
  known = std::max(known, use);
}

void Streams::tell_host(c10::StreamId stream) { tell_host_of(known_uses(stream)); }

void Streams::tell_host_of(int64_t use) {
  const std::lock_guard lock(mutex_);
  known_to_host_ = std::max(known_to_host_, use);
}

Streams& streams_of(c10::DeviceIndex device) {
  static auto* const all = new std::array<Streams, kMostDevices>;  // outlives every tensor
  return all->at(static_cast<size_t>(device));
}

c10::DeviceIndex num_devices() {
  static const c10::DeviceIndex count = [] {
    const char* text = std::getenv("PRETEND_DEVICES");
    const int asked = text == nullptr ? 1 : std::atoi(text);
    return static_cast<c10::DeviceIndex>(std::min<int>(std::max(asked, 1), kMostDevices));
  }();
  return count;
}

c10::DeviceIndex current_device() { return device_of_thread; }
void set_current_device(c10::DeviceIndex device) { device_of_thread = device; }
c10::StreamId current_stream_id(c10::DeviceIndex device) { return streams_of_thread.at(static_cast<size_t>(device)); }
void set_current_stream_id(c10::DeviceIndex device, c10::StreamId stream) {
  streams_of_thread.at(static_cast<size_t>(device)) = stream;
}

void ignore(Ignored what) { ignored() = what; }
bool ignores(Ignored what) { return ignored() == what; }

}  // namespace megalith::pretend
