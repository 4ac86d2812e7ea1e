#include "data/order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include <mutex>

#include "core/error.h"
#include "core/number_of.h"
#include "core/permutation.h"

namespace megalith {

struct Order::Permutation {
  std::mutex mutex;
  int64_t pass = -1;
  at::Tensor rows;
};

Order::Order(RowOrder kind, int64_t num_rows, std::string name, uint64_t key)
    : kind_(kind),
      num_rows_(num_rows),
      name_(std::move(name)),
      key_(key),
      permutation_(std::make_unique<Permutation>()) {}

Order::Order(RowMix mix, std::string name) : Order(RowOrder::kMixed, mix.num_rows(), std::move(name)) {
  mix_ = std::move(mix);
}

Order::~Order() = default;
Order::Order(Order&&) noexcept = default;

std::vector<PlacedRow> Order::rows(const DataPosition& p) const {
  check(p);
  const auto row_at = [&](int64_t place, int64_t i) {
    const int64_t pass = place / num_rows_, at = place % num_rows_;
    switch (kind_) {
      case RowOrder::kOnce:
        return place;
      case RowOrder::kRepeated:
        return at;
      case RowOrder::kShuffled:
        return shuffled(pass, num_rows_, at);
      case RowOrder::kSharded:
        return sharded_row(p, i);
      case RowOrder::kPermuted:
        return permuted(key_, static_cast<uint64_t>(pass), at, num_rows_);
      case RowOrder::kMixed:
        return mix_->number_at(place);
    }
    throw InternalError("an order without a row here");
  };
  std::vector<PlacedRow> rows;
  for (int64_t i = 0; i < p.micro_batch_size; ++i) {
    const int64_t share = kind_ == RowOrder::kShuffled ? i * p.dp_size + p.dp_rank : p.dp_rank * p.micro_batch_size + i;
    const int64_t place = p.consumed_samples + share;
    rows.push_back({row_at(place, i), place});
  }
  return rows;
}

void Order::check(const DataPosition& p) const {
  MEGALITH_CHECK(p.consumed_samples >= 0 && p.micro_batch_size > 0 && p.dp_rank >= 0 && p.dp_rank < p.dp_size,
                 "consumed {}, micro batch {}, rank {} of {}", p.consumed_samples, p.micro_batch_size, p.dp_rank,
                 p.dp_size);
  const int64_t chunk = p.micro_batch_size * p.dp_size, chunk_end = p.consumed_samples + chunk;
  if (kind_ == RowOrder::kOnce && chunk_end > num_rows_) {
    throw UserError(fmt::format("{} has {}, but the run asks for samples {} to {}", name_,
                                number_of(num_rows_, "sample", "samples"), p.consumed_samples, chunk_end),
                    "shorten the run, add data, or repeat it with --dataloader_type cyclic");
  }
  if (kind_ == RowOrder::kSharded && num_rows_ < chunk) {
    throw UserError(fmt::format("{} has {} samples, fewer than micro_batch_size {} times {} data-parallel ranks", name_,
                                num_rows_, p.micro_batch_size, p.dp_size),
                    "add data or use a smaller micro_batch_size");
  }
  if (num_rows_ == 0) throw UserError(fmt::format("{} has no samples", name_), "add data");
  if (kind_ == RowOrder::kSharded && p.consumed_samples % (num_rows_ - num_rows_ % chunk) % chunk != 0) {
    throw UserError(
        fmt::format("the run has read {} samples, and {} is read {} at a time (micro_batch_size {} times {} "
                    "data-parallel ranks), each rank from its own part: no microbatch begins there",
                    p.consumed_samples, name_, chunk, p.micro_batch_size, p.dp_size),
        "go on with the micro_batch_size and the ranks of before, or with --no_data_sharding, whose order "
        "depends on neither");
  }
}

int64_t Order::sharded_row(const DataPosition& p, int64_t i) const {
  const int64_t used = num_rows_ - num_rows_ % (p.micro_batch_size * p.dp_size), part = used / p.dp_size;
  return p.dp_rank * part + shuffled(p.consumed_samples / used, part, p.consumed_samples % used / p.dp_size + i);
}

int64_t Order::shuffled(int64_t pass, int64_t size, int64_t place) const {
  const std::lock_guard lock(permutation_->mutex);
  at::Tensor& rows = permutation_->rows;
  if (pass != permutation_->pass || rows.numel() != size) {
    // Seeded only by the pass: as in Megatron, the run's seed plays no part.
    rows =
        at::randperm(size, at::detail::createCPUGenerator(static_cast<uint64_t>(pass)), at::TensorOptions(at::kLong));
    permutation_->pass = pass;
  }
  return rows.const_data_ptr<int64_t>()[place];
}

}  // namespace megalith
