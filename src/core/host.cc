#include "core/host.h"

#include <unistd.h>

#include <array>
#include <climits>

namespace megalith {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  const bool has_name = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return has_name ? name.data() : "localhost";
}

}  // namespace megalith
