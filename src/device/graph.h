// Work of a device that is issued once, kept, and done again at the cost of one launch: a CUDA graph.
//
// What is captured is what the device is told: kernels with the addresses and the numbers that they were given. So
// whatever changes from one replay to the next must be read from device memory that stays where it is, and nothing of
// the host's part of the work happens again. While a graph is captured nothing runs: whoever wants the results replays
// it.
//
// For CUDA it is at::cuda::CUDAGraph; the pretend accelerator of the tests has graphs of its own (graph_backend.h).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace megalith {

class GraphBackend;

// Whether this build can capture graphs on such a device: NVIDIA's, where it was built with CUDA's headers.
bool can_capture_graphs(const c10::Device& device);

// Whether a graph is captured in this process now. Events are not asked then (StreamEvent::is_done): on some devices a
// question from any thread would end the capture.
bool is_capturing_graph();

class DeviceGraph {
 public:
  // can_capture_graphs() holds.
  // neighbour  a captured graph whose memory this one may use: neither keeps anything there from one replay to the
  //            next; or null
  DeviceGraph(const c10::Device& device, const DeviceGraph* neighbour);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // What `work` issues is kept, and does not run. The thread's stream must not be the device's default one. All of it
  // goes to that stream, also what backward's threads issue; the host waits for nothing, copies nothing, and what
  // `work` allocates lies in the graph's own memory, whose addresses stay. What it reads besides must stay as well.
  void capture(const std::function<void()>& work);

  // Does the work again, in the order of the current stream.
  void replay() const;

 private:
  std::unique_ptr<GraphBackend> backend_;
  c10::MempoolId_t pool_;
};

}  // namespace megalith
