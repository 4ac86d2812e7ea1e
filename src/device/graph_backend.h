// A device type's own graphs, as graph.h uses them. LibTorch 2.11 has no interface for that.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>

namespace megalith {

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;
  // Captures the thread's current stream until end() on the same thread. Other threads are unaffected.
  // pool  for its memory: another graph's, or {0, 0} for one of its own
  virtual void begin(c10::MempoolId_t pool) = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
  virtual c10::MempoolId_t pool() = 0;
};

using GraphMaker = std::unique_ptr<GraphBackend> (*)();

// at::cuda::CUDAGraph; null in builds without CUDA's headers.
GraphMaker cuda_graph_maker();

// For device types that are not LibTorch's own: the tests'. Called before threads start.
void set_graph_maker(c10::DeviceType type, GraphMaker maker);

}  // namespace megalith
