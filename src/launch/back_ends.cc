#include "launch/back_ends.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace megalith {

std::string nccl_version_text(int code) {
  const int unit = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / unit, code % unit / 100, code % 100);
}

BackEnds back_ends() {
  BackEnds found;
#ifdef MEGALITH_GLOO
  found.has_gloo = true;
#endif
#ifdef MEGALITH_NCCL
  found.has_nccl = true;
#endif
  // Its header may be absent at build time.
  using GetVersion = int (*)(int*);
  int code = 0;
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (get_version != nullptr && get_version(&code) == 0) found.nccl_version = nccl_version_text(code);
  return found;
}

}  // namespace megalith
