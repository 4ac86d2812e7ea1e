// A device type's graphs; LibTorch 2.11 has no generic interface.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>

namespace megalith {

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;
  // Captures the thread's current stream until end() on the same thread. `pool`: another graph's memory, or {0, 0}.
  virtual void begin(c10::MempoolId_t pool) = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
  virtual c10::MempoolId_t pool() = 0;
};

using GraphMaker = std::unique_ptr<GraphBackend> (*)();

// Null without CUDA's headers.
GraphMaker cuda_graph_maker();

// For tests; call before threads start.
void set_graph_maker(c10::DeviceType type, GraphMaker maker);

}  // namespace megalith
