// Source: AMD's guide "Training a model with Megatron-LM for ROCm" (v25.5).
#include "verify/library_check.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

namespace megalith {
namespace {

// "2.22.3" is (2, 22, 3); non-numbers are 0.
std::array<int, 3> version_numbers(std::string_view text) {
  std::array<int, 3> numbers{};
  for (int& number : numbers) {
    std::from_chars(text.data(), text.data() + text.size(), number);
    text.remove_prefix(std::min(text.find('.'), text.size() - 1) + 1);
    if (text.empty()) break;
  }
  return numbers;
}

Finding beside_the_guides(const std::string& check, const std::string& found, const std::string& guide) {
  Finding finding{"versions", check, FindingLevel::kOk, fmt::format("{} (AMD's image v25.5: {})", found, guide), ""};
  if (version_numbers(found) < version_numbers(guide)) {
    finding.level = FindingLevel::kNote;
    finding.found += ": older";
    finding.remedy = "docs/images.md names images that are newer";
  }
  return finding;
}

// By a loaded library's function(&number); 0 if absent.
int version_code(const char* function) {
  using GetVersion = int (*)(int*);
  int code = 0;
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, function));
  return get_version != nullptr && get_version(&code) == 0 ? code : 0;
}

}  // namespace

std::string cuda_version_text(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

std::string cublaslt_version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

std::string hip_version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000000, code % 10000000 / 100000, code % 100000);
}

LibraryVersions loaded_library_versions() {
  LibraryVersions versions;
  if (const int code = version_code("cudaRuntimeGetVersion"); code > 0) versions.cuda = cuda_version_text(code);
  if (const int code = version_code("hipRuntimeGetVersion"); code > 0) versions.hip = hip_version_text(code);
  using GetSize = size_t (*)();
  if (const auto get = reinterpret_cast<GetSize>(::dlsym(RTLD_DEFAULT, "cublasLtGetVersion")); get != nullptr) {
    versions.cublaslt = cublaslt_version_text(static_cast<int>(get()));
  }
  return versions;
}

Findings check_gpu_libraries(const LibraryVersions& versions) {
  Findings all;
  const auto add = [&](std::string check, const std::string& found) {
    if (!found.empty()) all.push_back({"versions", std::move(check), FindingLevel::kOk, found, ""});
  };
  add("CUDA runtime", versions.cuda);
  add("cuBLASLt", versions.cublaslt);
  add("HIP runtime", versions.hip);
  if (!versions.rocm.empty()) all.push_back(beside_the_guides("ROCm", versions.rocm, "6.3.4"));
  if (!versions.hipblaslt.empty()) all.push_back(beside_the_guides("hipBLASLt", versions.hipblaslt, "0.13.0"));
  if (!versions.rccl.empty()) all.push_back(beside_the_guides("RCCL", versions.rccl, "2.22.3"));
  return all;
}

}  // namespace megalith
