#include "comm/sequence_shard.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace megalith {
namespace {

// visit(chunk of whole (b, c, …), its place in parts).
template <typename Visit>
void for_each_chunk(const at::Tensor& whole, const at::Tensor& parts, const Visit& visit) {
  const int size = narrow<int>(parts.size(0));
  const int64_t chunk = div_exact(parts.size(2), 2);
  MEGALITH_CHECK(whole.size(1) == 2 * chunk * size, "{} tokens of {} ranks with {} each", whole.size(1), size,
                 2 * chunk);
  for (int rank = 0; rank < size; ++rank) {
    const auto chunks = zigzag_chunks(size, rank);
    for (int64_t half = 0; half < 2; ++half) {
      visit(whole.narrow(1, chunks[static_cast<size_t>(half)] * chunk, chunk),
            parts.select(0, rank).narrow(1, half * chunk, chunk));
    }
  }
}

}  // namespace

std::array<int64_t, 2> zigzag_chunks(int size, int rank) {
  MEGALITH_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  return {rank, 2 * size - 1 - rank};
}

at::Tensor zigzag_shard(const at::Tensor& x, int64_t dim, int size, int rank) {
  if (size == 1) return x;
  const int64_t chunk = div_exact(x.size(dim), 2 * int64_t{size});
  const auto chunks = zigzag_chunks(size, rank);
  return at::cat({x.narrow(dim, chunks[0] * chunk, chunk), x.narrow(dim, chunks[1] * chunk, chunk)}, dim);
}

at::Tensor zigzag_indices(int64_t length, int size, int rank) {
  return zigzag_shard(at::arange(length, at::kLong), 0, size, rank);
}

at::Tensor zigzag_join(const at::Tensor& parts) {
  std::vector<int64_t> shape = parts.sizes().slice(1).vec();
  shape.at(1) *= parts.size(0);
  at::Tensor whole = at::empty(shape, parts.options());
  for_each_chunk(whole, parts, [](const at::Tensor& of_whole, const at::Tensor& part) { of_whole.copy_(part); });
  return whole;
}

void zigzag_split(const at::Tensor& whole, const at::Tensor& parts) {
  for_each_chunk(whole, parts, [](const at::Tensor& of_whole, const at::Tensor& part) { part.copy_(of_whole); });
}

}  // namespace megalith
