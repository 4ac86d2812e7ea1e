// Every CPU call is checked: what the same code tells a GPU is right.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "core/error.h"
#include "ops/attention/attention.h"

namespace megalith::ops {
namespace {

void check_positions(const char* name, const at::Tensor& positions, const std::vector<PositionRun>& runs) {
  if (!positions.defined() || runs.empty()) return;
  const at::Tensor dense = positions.contiguous();
  const int64_t* position = dense.const_data_ptr<int64_t>();
  int64_t i = 0;
  for (const PositionRun& run : runs) {
    MEGALITH_CHECK(i + run.count <= dense.numel(), "{} has {} positions, and its runs more", name, dense.numel());
    for (int64_t j = 0; j < run.count; ++j, ++i) {
      MEGALITH_CHECK(position[i] == run.first + j, "{}[{}] is {}, and its runs say {}", name, i, position[i],
                     run.first + j);
    }
  }
  MEGALITH_CHECK(i == dense.numel(), "{} has {} positions, and its runs {}", name, dense.numel(), i);
}

// Neighbours share a number unless a document begins between them.
void check_documents(const char* name, const at::Tensor& documents, const at::Tensor& positions, int64_t first_position,
                     const std::vector<std::vector<int64_t>>& begins) {
  if (!documents.defined() || begins.empty()) return;
  const at::Tensor dense = documents.contiguous();
  const at::Tensor given = positions.defined() ? positions.contiguous() : at::Tensor();
  const int64_t length = dense.size(1);
  MEGALITH_CHECK(dense.size(0) == std::ssize(begins), "{} has {} rows, and the runs {}", name, dense.size(0),
                 begins.size());
  const int32_t* id = dense.const_data_ptr<int32_t>();
  for (const std::vector<int64_t>& row : begins) {
    const auto number_of = [&](int64_t i) {
      const int64_t position = given.defined() ? given.const_data_ptr<int64_t>()[i] : first_position + i;
      return std::upper_bound(row.begin(), row.end(), position) - row.begin();
    };
    for (int64_t i = 1; i < length; ++i) {
      MEGALITH_CHECK((id[i] == id[i - 1]) == (number_of(i) == number_of(i - 1)),
                     "{}: the documents of the runs do not part tokens {} and {} as the numbers {} and {} do", name,
                     i - 1, i, id[i - 1], id[i]);
    }
    id += length;
  }
}

// Unpadded keys per row.
void check_lengths(const AttentionMask& mask, int64_t sk) {
  const std::vector<int64_t>& lengths = mask.runs->lengths;
  if (!mask.key_lengths.defined() || lengths.empty()) return;
  const at::Tensor dense = mask.key_lengths.contiguous();
  MEGALITH_CHECK(dense.numel() == std::ssize(lengths), "key_lengths has {} rows, and the runs {}", dense.numel(),
                 lengths.size());
  const std::vector<PositionRun> whole = {{0, sk}};
  const std::vector<PositionRun>& keys = mask.key_positions.defined() ? mask.runs->keys : whole;
  for (size_t row = 0; row < lengths.size(); ++row) {
    int64_t count = 0;
    for (const PositionRun& run : keys) count += std::clamp(lengths[row], run.first, run.end()) - run.first;
    const int64_t given = std::min(dense.const_data_ptr<int64_t>()[row], sk);
    MEGALITH_CHECK(given == count, "key_lengths[{}] is {}, and the runs say {}", row, given, count);
  }
}

}  // namespace

void check_runs(const AttentionMask& mask, int64_t sq, int64_t sk) {
  if (!mask.runs) return;
  check_positions("query_positions", mask.query_positions, mask.runs->queries);
  check_positions("key_positions", mask.key_positions, mask.runs->keys);
  check_documents("query_documents", mask.query_documents, mask.query_positions, sk - sq, mask.runs->documents);
  check_documents("key_documents", mask.key_documents, mask.key_positions, 0, mask.runs->documents);
  check_lengths(mask, sk);
}

}  // namespace megalith::ops
