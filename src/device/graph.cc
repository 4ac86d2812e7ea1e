#include "device/graph.h"

#include <atomic>
#include <map>

#include "core/error.h"
#include "device/graph_backend.h"

namespace megalith {
namespace {

std::atomic<int> captures_under_way{0};

std::map<c10::DeviceType, GraphMaker>& makers() {
  static auto* const all = new std::map<c10::DeviceType, GraphMaker>{{c10::kCUDA, cuda_graph_maker()}};
  return *all;
}

GraphMaker maker_of(const c10::Device& device) {
  const auto found = makers().find(device.type());
  return found == makers().end() ? nullptr : found->second;
}

}  // namespace

void set_graph_maker(c10::DeviceType type, GraphMaker maker) { makers()[type] = maker; }

bool can_capture_graphs(const c10::Device& device) { return maker_of(device) != nullptr; }

bool is_capturing_graph() { return captures_under_way > 0; }

DeviceGraph::DeviceGraph(const c10::Device& device, const DeviceGraph* neighbour) : pool_(0, 0) {
  const GraphMaker maker = maker_of(device);
  MEGALITH_CHECK(maker != nullptr, "graphs on {}", device.str());
  backend_ = maker();
  if (neighbour != nullptr) pool_ = neighbour->backend_->pool();
}

DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::capture(const std::function<void()>& work) {
  struct UnderWay {
    UnderWay() { ++captures_under_way; }
    ~UnderWay() { --captures_under_way; }
  } const under_way;
  backend_->begin(pool_);
  try {
    work();
  } catch (...) {
    try {
      backend_->end();
    } catch (...) {  // the first failure matters
    }
    throw;
  }
  backend_->end();
}

void DeviceGraph::replay() const { backend_->replay(); }

}  // namespace megalith
