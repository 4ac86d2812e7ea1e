// Samplers; see sampler.h.
#include "data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include "core/error.h"
#include "core/number_of.h"

namespace megalith {

Sampler::Sampler(DataloaderType type, int64_t num_samples, bool data_sharding, std::string name)
    : type_(type), num_samples_(num_samples), data_sharding_(data_sharding), name_(std::move(name)) {}

std::vector<SampleRow> Sampler::rows(const DataPosition& position) {
  MEGALITH_CHECK(position.consumed_samples >= 0 && position.micro_batch_size > 0 && position.dp_rank >= 0 &&
                     position.dp_rank < position.dp_size,
                 "consumed {}, micro batch {}, rank {} of {}", position.consumed_samples, position.micro_batch_size,
                 position.dp_rank, position.dp_size);
  if (type_ == DataloaderType::kSingle) return single_rows(position);
  return data_sharding_ ? sharded_rows(position) : shuffled_rows(position);
}

std::vector<SampleRow> Sampler::single_rows(const DataPosition& p) const {
  const int64_t chunk_end = p.consumed_samples + p.micro_batch_size * p.dp_size;
  if (chunk_end > num_samples_) {
    throw UserError(fmt::format("{} has {}, but the run asks for samples {} to {}", name_,
                                number_of(num_samples_, "sample", "samples"), p.consumed_samples, chunk_end),
                    "shorten the run, add data, or repeat it with --dataloader_type cyclic");
  }
  std::vector<SampleRow> rows(static_cast<size_t>(p.micro_batch_size));
  int64_t next = p.consumed_samples + p.dp_rank * p.micro_batch_size;
  for (SampleRow& row : rows) {
    row = {next, next};
    ++next;
  }
  return rows;
}

std::vector<SampleRow> Sampler::sharded_rows(const DataPosition& p) {
  const int64_t chunk = p.micro_batch_size * p.dp_size;
  const int64_t active = num_samples_ - num_samples_ % chunk;
  if (active == 0) {
    throw UserError(fmt::format("{} has {} samples, fewer than micro_batch_size {} times {} data-parallel ranks", name_,
                                num_samples_, p.micro_batch_size, p.dp_size),
                    "add data or use a smaller micro_batch_size");
  }
  const int64_t epoch = p.consumed_samples / active, offset = p.consumed_samples % active;
  if (offset % chunk != 0) {
    throw UserError(
        fmt::format("the run has read {} samples, and {} is read {} at a time (micro_batch_size {} times {} "
                    "data-parallel ranks), each rank from its own part: no microbatch begins there",
                    p.consumed_samples, name_, chunk, p.micro_batch_size, p.dp_size),
        "go on with the micro_batch_size and the ranks of before, or with --no_data_sharding, whose order "
        "depends on neither");
  }
  const int64_t bucket = active / p.dp_size, start = offset / p.dp_size;
  const std::vector<int64_t>& order = permutation(epoch, bucket);
  std::vector<SampleRow> rows(static_cast<size_t>(p.micro_batch_size));
  for (int64_t i = 0; i < p.micro_batch_size; ++i) {
    rows[static_cast<size_t>(i)] = {p.dp_rank * bucket + order[static_cast<size_t>(start + i)],
                                    p.consumed_samples + p.dp_rank * p.micro_batch_size + i};
  }
  return rows;
}

// Every place is looked up by itself, so a microbatch may reach over the end of an epoch, or hold several.
std::vector<SampleRow> Sampler::shuffled_rows(const DataPosition& p) {
  if (num_samples_ == 0) throw UserError(fmt::format("{} has no samples", name_), "add data");
  std::vector<SampleRow> rows(static_cast<size_t>(p.micro_batch_size));
  int64_t place = p.consumed_samples + p.dp_rank;
  for (SampleRow& row : rows) {
    row = {permutation(place / num_samples_, num_samples_)[static_cast<size_t>(place % num_samples_)], place};
    place += p.dp_size;
  }
  return rows;
}

const std::vector<int64_t>& Sampler::permutation(int64_t epoch, int64_t size) {
  if (epoch != permutation_epoch_ || static_cast<int64_t>(permutation_.size()) != size) {
    // torch.randperm of a CPU generator seeded only with the epoch: as in Megatron, the run's seed plays no part.
    const at::Tensor order =
        at::randperm(size, at::detail::createCPUGenerator(static_cast<uint64_t>(epoch)), at::TensorOptions(at::kLong));
    permutation_.assign(order.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>() + size);
    permutation_epoch_ = epoch;
  }
  return permutation_;
}

}  // namespace megalith
