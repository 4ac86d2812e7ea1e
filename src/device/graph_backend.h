// A kind of device's own graphs, as graph.h uses them. LibTorch 2.11 has no interface of its own for that.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>

namespace megalith {

// One graph of the thread's current device.
class GraphBackend {
 public:
  virtual ~GraphBackend() = default;
  // Captures what comes to the thread's current stream, until end(), which the same thread calls. Other threads may do
  // what they like meanwhile.
  // pool  of which its memory is: another graph's, or {0, 0} for one of its own
  virtual void begin(c10::MempoolId_t pool) = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
  virtual c10::MempoolId_t pool() = 0;
};

using GraphMaker = std::unique_ptr<GraphBackend> (*)();

// at::cuda::CUDAGraph; null in builds without CUDA's headers.
GraphMaker cuda_graph_maker();

// For a kind of device that LibTorch does not bring: the tests' one. Called before threads start.
void set_graph_maker(c10::DeviceType type, GraphMaker maker);

}  // namespace megalith
