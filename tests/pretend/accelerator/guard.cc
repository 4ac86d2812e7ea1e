// LibTorch's interface to an accelerator apart from operators: devices, streams, events, memory. Registers it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/memory.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::pretend {
namespace {

c10::Device device_at(c10::DeviceIndex index) { return {c10::kPrivateUse1, index < 0 ? current_device() : index}; }

c10::Stream stream_at(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device.index()), id);
}

struct Event {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = kMainStream;
  int64_t position = 0;
  int64_t period = 0;
  int64_t known_uses = 0;  // of memory, by the main stream
  bool is_of_graph = false;

  void reach() const { streams_of(device).run_until(stream, position); }
};

// An event of a step is old when the next step has been issued as well: a device still has that one to do while the
// host waits. The step's own period ends after the event.
constexpr int64_t kOldPeriods = 2;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = c10::kPrivateUse1;

  c10::DeviceType type() const override { return static_type; }
  c10::DeviceIndex deviceCount() const noexcept override { return num_devices(); }
  c10::Device getDevice() const override { return device_at(current_device()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < num_devices(), "there is no device ", device, ": there are ", int{num_devices()});
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) set_current_device(device.index());
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_at(device, current_stream_id(device_at(device.index()).index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(device, kMainStream); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*has_high_priority*/) const override {
    return stream_at(device, streams_of(device_at(device.index()).index()).make());
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    set_current_stream_id(stream.device_index(), stream.id());
    return before;
  }
  // Passed to the emulated kernels, which run at once.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {stream.device_index(),
                                    stream.id(),
                                    streams_of(stream.device_index()).issued(stream.id()),
                                    current_period(),
                                    streams_of(stream.device_index()).known_uses(stream.id()),
                                    is_captured(stream.device_index(), stream.id())};
  }
  // Host and main stream go on; what is issued on `stream` from now on comes after the event.
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || ignores(Ignored::kEventWaits)) return;
    const Event awaited = *static_cast<Event*>(event);
    TORCH_CHECK(awaited.is_of_graph == is_captured(stream.device_index(), stream.id()),
                "an event orders what is in a graph and what is not");
    if (stream.id() == kMainStream) {
      awaited.reach();
    } else if (awaited.stream != stream.id()) {
      if (ignores(Ignored::kEventWaitsOfSideStreams)) return;
      Streams& streams = streams_of(stream.device_index());
      streams.push(stream.id(), [awaited] { awaited.reach(); });
      if (awaited.device == stream.device_index()) streams.learn(stream.id(), awaited.known_uses);
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const auto* const reached = static_cast<const Event*>(event);
    refuse_in_graph(reached->device, "an event is asked");
    reached->reach();
    streams_of(reached->device).tell_host_of(reached->known_uses);
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 1; }

  bool queryStream(const c10::Stream& stream) const override {
    streams_of(stream.device_index()).run(stream.id());
    streams_of(stream.device_index()).tell_host(stream.id());
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const auto* awaited = static_cast<const Event*>(event);
    const bool is_old = awaited != nullptr && current_period() - awaited->period >= kOldPeriods;
    note_wait(is_old ? "an old event" : "an event");
    queryEvent(event);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_wait("a stream");
    queryStream(stream);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    note_wait("the device");
    streams_of(device_at(device).index()).run_all();
    streams_of(device_at(device).index()).tell_host(kMainStream);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data.get(), stream.id());
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return num_devices(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  // Set by at::manual_seed(); operators draw from the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
    const c10::DeviceIndex before = exchangeDevice(impl->device().index());
    c10::DataPtr fresh = device_allocator().allocate(num_bytes);
    set_current_device(before);
    if (impl->data() != nullptr) {
      const Task move = [to = fresh.get(), from = impl->data(), bytes = std::min(num_bytes, impl->nbytes())] {
        std::memcpy(to, from, bytes);
      };
      move();
      keep_in_graph(impl->device().index(), move);
    }
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(num_bytes);
  }
};

const c10::impl::DeviceGuardImplRegistrar guard_registrar(c10::kPrivateUse1, new Guard);
const bool is_registered = [] {
  c10::SetAllocator(c10::kPrivateUse1, &device_allocator());
  c10::register_privateuse1_backend("pretend");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace megalith::pretend
