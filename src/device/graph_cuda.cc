// The part that needs CUDA's headers.
#include "device/graph_backend.h"

#ifdef MEGALITH_CUDA_HEADERS
#include <ATen/cuda/CUDAGraph.h>
#endif

namespace megalith {

#ifdef MEGALITH_CUDA_HEADERS
namespace {

class CudaGraph final : public GraphBackend {
 public:
  void begin(c10::MempoolId_t pool) override { graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal); }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }
  c10::MempoolId_t pool() override { return graph_.pool(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

GraphMaker cuda_graph_maker() {
  return []() -> std::unique_ptr<GraphBackend> { return std::make_unique<CudaGraph>(); };
}
#else
GraphMaker cuda_graph_maker() { return nullptr; }
#endif

}  // namespace megalith
