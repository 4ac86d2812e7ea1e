// --gemm_tuning: the vendor library's algorithm for each matrix product, measured once and kept in a file.
//
// An algorithm is a few words that only the same version of the library understands, and its time holds only for one
// device: a file names both, and is refused elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace megalith {
class OptionVisitor;
}  // namespace megalith

namespace megalith::ops::gpu {

enum class GemmTuning {
  kOff,   // the library's first choice
  kTune,  // the fastest of its first choices, timed for each product that the file lacks, and written there
  kUse,   // the file's choice, else the library's first
};

struct GemmTuningOptions {
  GemmTuning gemm_tuning = GemmTuning::kOff;
  std::string gemm_tuning_file = "gemm_tuning.json";

  bool is_on() const { return gemm_tuning != GemmTuning::kOff; }
  void visit(OptionVisitor& visitor);
};

struct TunedAlgorithm {
  std::vector<uint64_t> words;
  int64_t workspace_bytes = 0;
  double time_us = 0, first_time_us = 0;  // second: the library's first choice
};

struct TunedProducts {
  std::string library, device;                       // "cuBLASLt 130100", "NVIDIA H200, sm_90"
  std::map<std::string, TunedAlgorithm> algorithms;  // by names of calls (product_plan.h)
};

// UserError for another kind of file, library or device.
TunedProducts load_tuned_products(const std::filesystem::path& path, const std::string& library,
                                  const std::string& device);
// Adds to the file's contents, if of this library and device; other ranks may have written it meanwhile.
void add_tuned_products(const std::filesystem::path& path, const TunedProducts& tuned);

}  // namespace megalith::ops::gpu
