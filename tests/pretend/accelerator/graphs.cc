// See graphs.h.
#include "pretend/accelerator/graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "device/graph_backend.h"
#include "pretend/accelerator/memory.h"
#include "pretend/accelerator/on_host.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"
#include "pretend/blas/cublaslt.h"
#ifdef MEGALITH_GPU_KERNELS
#include "gpu_kernels/emulation/machine.h"
#endif

namespace megalith::pretend {
namespace {

using at::Tensor;

struct Capture {
  c10::StreamId stream = kMainStream;
  std::thread::id thread;
  std::mutex mutex;  // backward has threads of its own
  std::vector<Task> tasks;
  Contents before;
};

std::atomic<Capture*>& capture_of(c10::DeviceIndex device) {
  static auto* const all = new std::array<std::atomic<Capture*>, 16>{};
  return all->at(static_cast<size_t>(device));
}

void keep(Capture& capture, Task task) {
  const std::lock_guard lock(capture.mutex);
  capture.tasks.push_back(std::move(task));
}

class Graph final : public GraphBackend {
 public:
  ~Graph() override {
    if (pool_.first != 0) leave_pool(pool_.first);
  }

  void begin(c10::MempoolId_t pool) override {
    device_ = current_device();
    const c10::StreamId stream = current_stream_id(device_);
    TORCH_CHECK(stream != kMainStream, "the main stream cannot be captured");
    TORCH_CHECK(!is_captured(device_), "a graph is captured on the device already");
    TORCH_CHECK(pool_.first == 0, "the graph is captured already");
    streams_of(device_).run(stream);  // comes before
    static std::atomic<uint64_t> pools{0};
    pool_ = pool.first == 0 ? c10::MempoolId_t{++pools, 0} : pool;
    capture_.stream = stream;
    capture_.thread = std::this_thread::get_id();
    capture_.before = contents_of(device_);
    enter_pool(device_, pool_.first);
    capture_of(device_) = &capture_;
  }

  void end() override {
    TORCH_CHECK(capture_of(device_) == &capture_ && capture_.thread == std::this_thread::get_id() &&
                    capture_.stream == current_stream_id(device_),
                "a capture ends where it began: on its stream and thread");
    capture_of(device_) = nullptr;
    end_pool(device_);
    restore(device_, capture_.before);
    capture_.before.clear();
  }

  void replay() override {
    TORCH_CHECK(pool_.first != 0 && !is_captured(device_), "a graph that is not captured yet");
    TORCH_CHECK(current_stream_id(device_) == kMainStream, "graphs are replayed on the main stream here");
    const AtWork at_work;
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const Task& task : capture_.tasks) task();
  }

  c10::MempoolId_t pool() override { return pool_; }

 private:
  c10::DeviceIndex device_ = 0;
  c10::MempoolId_t pool_{0, 0};
  Capture capture_;
};

const bool has_graphs = [] {
  set_graph_maker(c10::kPrivateUse1, []() -> std::unique_ptr<GraphBackend> { return std::make_unique<Graph>(); });
  run_products_through(run_on_current_stream);
#ifdef MEGALITH_GPU_KERNELS
  gpu_emulation::run_launches_through(run_on_current_stream);
#endif
  return true;
}();

}  // namespace

bool is_captured(c10::DeviceIndex device) { return capture_of(device) != nullptr; }

bool is_captured(c10::DeviceIndex device, c10::StreamId stream) {
  const Capture* const capture = capture_of(device);
  return capture != nullptr && capture->stream == stream;
}

void refuse_in_graph(c10::DeviceIndex device, const std::string& what) {
  TORCH_CHECK(!is_captured(device), "while a graph is captured: ", what);
}

void refuse_in_own_graph(c10::DeviceIndex device, const std::string& what) {
  const Capture* const capture = capture_of(device);
  if (capture != nullptr && capture->thread == std::this_thread::get_id()) refuse_in_graph(device, what);
}

void check_stream_of_graph(c10::DeviceIndex device) {
  TORCH_CHECK(!is_captured(device) || is_captured(device, current_stream_id(device)),
              "while a graph is captured: work on another stream");
}

void keep_in_graph(c10::DeviceIndex device, Task task) {
  check_stream_of_graph(device);
  keep_memory_in_graph(device, std::move(task));
}

void keep_memory_in_graph(c10::DeviceIndex device, Task task) {
  Capture* const capture = capture_of(device);
  if (capture != nullptr) keep(*capture, std::move(task));
}

void keep_call_in_graph(const c10::OperatorHandle& op, BoxedKernel kernel, at::Device device,
                        const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack) {
  if (!is_captured(device.index())) return;
  std::vector<Tensor> results;  // without owning them
  for (const c10::IValue& result : torch::jit::last(stack, op.schema().returns().size())) {
    const bool is_here = result.isTensor() && result.toTensor().is_privateuseone();
    results.push_back(is_here ? as_host(result.toTensor()) : Tensor());
  }
  keep_in_graph(device.index(), [op, kernel, arguments, results] {
    torch::jit::Stack again(arguments.begin(), arguments.end());
    kernel(op, &again);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined()) results[i].copy_(as_host(again[i].toTensor()));
    }
  });
}

void run_on_current_stream(const Task& task) {
  const c10::DeviceIndex device = current_device();
  before_operator_on(at::Device(at::kPrivateUse1, device));
  task();
  keep_in_graph(device, task);
}

}  // namespace megalith::pretend
