// GPU libraries' versions against AMD's published images.
#pragma once

#include <string>

#include "core/finding.h"

namespace megalith {

// Empty: absent.
struct LibraryVersions {
  std::string cuda, cublaslt;  // "13.0", "13.0.2": as loaded
  std::string hip;             // "6.3.42134"
  std::string rocm;            // in /opt/rocm, like the next two
  std::string hipblaslt;       // "0.13.0"
  std::string rccl;            // "2.22.3"
};

// cuda, cublaslt and hip of this process.
LibraryVersions loaded_library_versions();

// 13000 is 13.0; 130002 is 13.0.2; 60342134 is 6.3.42134.
std::string cuda_version_text(int code);
std::string cublaslt_version_text(int code);
std::string hip_version_text(int code);

// Topic "versions". Older ones than AMD's are notes: perhaps slower than the guides.
Findings check_gpu_libraries(const LibraryVersions& versions);

}  // namespace megalith
