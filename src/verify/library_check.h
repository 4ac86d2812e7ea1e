// Versions of the libraries for GPUs that this process has loaded and that are installed, beside those of the images
// that AMD publishes with its guides.
#pragma once

#include <string>

#include "core/finding.h"

namespace megalith {

// Empty: not there.
struct LibraryVersions {
  std::string cuda, cublaslt;  // "13.0", "13.0.2": as the loaded libraries tell
  std::string hip;             // "6.3.42134"
  std::string rocm;            // "6.3.4": of what is installed in /opt/rocm, as the next
  std::string hipblaslt;       // "0.13.0"
  std::string rccl;            // "2.22.3"
};

// cuda, cublaslt and hip, asked of the libraries in this process.
LibraryVersions loaded_library_versions();

// 13000 is CUDA 13.0; 130002 is cuBLASLt 13.0.2; 60342134 is HIP 6.3.42134.
std::string cuda_version_text(int code);
std::string cublaslt_version_text(int code);
std::string hip_version_text(int code);

// Topic "versions". An older version than that of AMD's image is a note: a run works, and may be slower than the guides
// say.
Findings check_gpu_libraries(const LibraryVersions& versions);

}  // namespace megalith
