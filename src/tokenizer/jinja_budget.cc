// See jinja_budget.h.
#include "tokenizer/jinja_budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith {

void JinjaBudget::fail_work() const {
  throw JinjaFault{fmt::format("the template does more work than is allowed ({} units, about a second)", limits_.work)};
}

void JinjaBudget::take(size_t bytes) {
  constexpr int64_t kAllocation = 100;  // units
  const auto count = static_cast<int64_t>(bytes);
  work(bytes / 4 + kAllocation);
  if (count > limits_.made_bytes - use_.made_bytes) {
    throw JinjaFault{fmt::format("the template makes texts and lists of more than {} MiB", limits_.made_bytes >> 20)};
  }
  if (count > limits_.held_bytes - held_bytes_) {
    throw JinjaFault{fmt::format("the template holds more than {} MiB at once", limits_.held_bytes >> 20)};
  }
  use_.made_bytes += count;
  held_bytes_ += count;
  use_.most_held_bytes = std::max(use_.most_held_bytes, held_bytes_);
}

}  // namespace megalith
