// Device work that is captured once and replayed with one launch: a CUDA graph, or the pretend accelerator's
// (graph_backend.h).
//
// A capture records kernels with their addresses and arguments, without running them. Whatever changes between replays
// must be read from device memory at a fixed address, and no host work happens again.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace megalith {

class GraphBackend;

// True on NVIDIA's GPUs in builds with CUDA's headers.
bool can_capture_graphs(const c10::Device& device);

// Events are not queried meanwhile (StreamEvent::is_done): on some devices a query from any thread ends the capture.
bool is_capturing_graph();

class DeviceGraph {
 public:
  // Requires can_capture_graphs().
  // neighbour  a captured graph whose memory this one may share: neither keeps anything there between replays; or null
  DeviceGraph(const c10::Device& device, const DeviceGraph* neighbour);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Records what `work`, including backward's threads, issues. The thread's stream must not be the device's default
  // one; the host neither waits nor copies. What `work` allocates is in the graph's own memory at fixed addresses;
  // anything else that it reads must stay as well.
  void capture(const std::function<void()>& work);

  void replay() const;

 private:
  std::unique_ptr<GraphBackend> backend_;
  c10::MempoolId_t pool_;
};

}  // namespace megalith
