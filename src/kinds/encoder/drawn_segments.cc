// See drawn_segments.h.
#include "kinds/encoder/drawn_segments.h"

#include <ATen/ATen.h>

#include "core/philox.h"

namespace megalith {

DrawnSegments draw_segments(const Batch& rows, uint64_t key, int64_t num_labels) {
  const int64_t b = rows.num_rows(), s = rows.length(field::kTokens);
  DrawnSegments made{.types = at::zeros({b, s}, at::kLong),
                     .lengths = at::empty({b}, at::kLong),
                     .labels = at::empty({b}, at::kLong)};
  const at::Tensor order = rows.at(field::kSampleIndex).contiguous();
  for (int64_t row = 0; row < b; ++row) {
    const PhiloxBlock words = philox(key, {0, static_cast<uint64_t>(order.const_data_ptr<int64_t>()[row])});
    const auto drawn = [&](size_t word, int64_t count) {
      return static_cast<int64_t>(uniform_from_word(words[word]) * static_cast<double>(count));
    };
    const int64_t length = s - drawn(0, s / 2 + 1), cut = drawn(1, length + 1);
    made.types[row].slice(0, cut, length).fill_(1);
    made.lengths.mutable_data_ptr<int64_t>()[row] = length;
    made.labels.mutable_data_ptr<int64_t>()[row] = drawn(2, num_labels);
  }
  return made;
}

}  // namespace megalith
