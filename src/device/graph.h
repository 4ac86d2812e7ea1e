// Device work captured once and replayed with one launch (a CUDA graph). A capture records kernels and arguments
// without running them: values that change between replays must be read from device memory at fixed addresses, and host
// work does not repeat.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace megalith {

class GraphBackend;

// NVIDIA only, with CUDA's headers.
bool can_capture_graphs(const c10::Device& device);

// Meanwhile StreamEvent::is_done() must not query: on some devices that ends the capture, from any thread.
bool is_capturing_graph();

class DeviceGraph {
 public:
  // Requires can_capture_graphs(). `neighbour` may be null; else shares that captured graph's memory, where neither
  // keeps anything between replays.
  DeviceGraph(const c10::Device& device, const DeviceGraph* neighbour);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Records what `work` issues, backward's threads included. Requires a non-default stream; the host must neither wait
  // nor copy. Allocations come from the graph's memory; anything else read must outlive the graph.
  void capture(const std::function<void()>& work);

  void replay() const;

 private:
  std::unique_ptr<GraphBackend> backend_;
  c10::MempoolId_t pool_;
};

}  // namespace megalith
