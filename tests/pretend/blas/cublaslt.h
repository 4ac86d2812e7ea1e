// A double of cuBLASLt for the pretend accelerator: products in host memory, in columns as the library reads them, sums
// in float. It refuses what the real one refuses or would compute wrongly: leading dimensions shorter than columns,
// sizes that do not fit, addresses less aligned than the algorithm was asked for, algorithms of another product, a
// workspace that is too small, operands of FP8 that do not run along the sum, scales of blocks with sums of fewer bits
// or of two operands in squares, a bias without an address, and sums whose parts may be rounded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

struct cublasLtMatrixLayoutOpaque_t;

namespace megalith::pretend {

struct CublasLt {
  int quick_algorithm = -1;  // all others take a while; -1: none does
  int64_t num_products = 0;  // that have run
  // Those of operands in eight bits, and of scales of blocks.
  int64_t num_fp8_products = 0, num_block_products = 0;
  int last_algorithm = -1;   // by number
  int64_t num_objects = 0;   // descriptions, layouts and preferences that are not destroyed
  std::string last_refusal;  // in words
  size_t version = 130100;
  bool takes_any_fp8_layout = false;  // hipBLASLt's chips do
};
CublasLt& cublaslt();

int type_of(const cublasLtMatrixLayoutOpaque_t* layout);

// Who runs the products from now on, each once; otherwise they run where they are called.
void run_products_through(void (*run)(const std::function<void()>& product));

inline constexpr int kNumAlgorithms = 20;
inline constexpr size_t kWorkspaceBytes = 1 << 20;  // that an algorithm needs

}  // namespace megalith::pretend
