#include "device/stream.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/error.h"
#include "device/graph.h"
#include "device/host_sync.h"

namespace megalith {

c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream side_stream(const c10::Device& device, bool has_high_priority) {
  if (device.is_cpu()) return current_stream(device);
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, has_high_priority);
}

void synchronize(const c10::Device& device) {
  if (device.is_cpu()) return;
  note_host_sync("all work of the device");
  at::accelerator::synchronizeDevice(device.index());
}

StreamScope::StreamScope(const c10::Stream& stream)
    : previous_(c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream)) {}

StreamScope::~StreamScope() { c10::impl::VirtualGuardImpl(previous_.device_type()).exchangeStream(previous_); }

struct StreamEvent::Accelerated {
  c10::Event event;
};

StreamEvent::StreamEvent(const c10::Device& device, bool has_timing) {
  if (device.is_cpu()) return;
  const auto flag = has_timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
  event_ = std::make_unique<Accelerated>(Accelerated{c10::Event(device.type(), flag)});
}

StreamEvent::~StreamEvent() = default;
StreamEvent::StreamEvent(StreamEvent&&) noexcept = default;
StreamEvent& StreamEvent::operator=(StreamEvent&&) noexcept = default;

void StreamEvent::record(const c10::Stream& stream) {
  recorded_at_ = std::chrono::steady_clock::now();
  if (event_) event_->event.record(stream);
}

void StreamEvent::make_wait(const c10::Stream& stream) const {
  if (event_) event_->event.block(stream);
}

bool StreamEvent::is_done() const { return !event_ || (!is_capturing_graph() && event_->event.query()); }

void StreamEvent::wait() const {
  if (!event_) return;
  note_host_sync("an event");
  event_->event.synchronize();
}

double StreamEvent::elapsed_ms(const StreamEvent& later) const {
  MEGALITH_CHECK(!event_ == !later.event_, "the events are of different devices");
  if (event_) return event_->event.elapsedTime(later.event_->event);
  return std::chrono::duration<double, std::milli>(later.recorded_at_ - recorded_at_).count();
}

}  // namespace megalith
