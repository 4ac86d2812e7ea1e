// --gemm_tuning: the library's algorithm for each matrix product, measured once and kept in a file, which names the
// library's version and the device, and is refused elsewhere.
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
  kTune,  // the fastest of its first choices, timed if not in the file, and added
  kUse,   // the file's, else the library's first choice
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
  double time_us = 0, first_time_us = 0;  // the library's first choice
};

struct TunedProducts {
  std::string library, device;                       // "cuBLASLt 130100", "NVIDIA H200, sm_90"
  std::map<std::string, TunedAlgorithm> algorithms;  // by name_of(call)
};

// UserError for another kind of file, library or device.
TunedProducts load_tuned_products(const std::filesystem::path& path, const std::string& library,
                                  const std::string& device);
// Adds to a file of this library and device, which other ranks may have written meanwhile.
void add_tuned_products(const std::filesystem::path& path, const TunedProducts& tuned);

}  // namespace megalith::ops::gpu
