#include "core/number_of.h"

#include <fmt/format.h>

namespace megalith {

std::string number_of(int64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

}  // namespace megalith
