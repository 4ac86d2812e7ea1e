// See sentence_samples.h.
#include "data/sentence_samples.h"

#include <algorithm>

#include "core/error.h"

namespace megalith {

void RecordWriter::tokens(std::span<const int64_t> values, int64_t size, int64_t fill) {
  const auto room = static_cast<size_t>(size);
  MEGALITH_CHECK(values.size() <= room && at_ + room <= out_.size(), "{} numbers in the place of {}", values.size(),
                 size);
  const auto begin = out_.begin() + static_cast<std::ptrdiff_t>(at_);
  std::fill(std::copy(values.begin(), values.end(), begin), begin + static_cast<std::ptrdiff_t>(room), fill);
  at_ += room;
}

}  // namespace megalith
