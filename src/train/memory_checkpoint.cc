#include "train/memory_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/checksum.h"
#include "core/error.h"

namespace megalith {
namespace {

constexpr std::string_view kInMemory = "checkpoints in memory";
constexpr int64_t kChunkBytes = int64_t{64} << 20;  // of device memory at a time
constexpr int kMostTries = 3;                       // then the way or a memory is at fault

int64_t sum_of(const at::Tensor& bytes) {
  const auto* const data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return static_cast<int64_t>(checksum64(std::span(data, bytes.nbytes())));
}

at::Tensor empty_bytes(int64_t size) { return at::empty({size}, at::kByte); }

// Either may be undefined: nothing goes that way.
void exchange_bytes(const at::Tensor& sent, int to, const at::Tensor& received, int from, Group& world) {
  const auto size_of = [](const at::Tensor& bytes) { return bytes.defined() ? bytes.numel() : 0; };
  for (int64_t first = 0; first < std::max(size_of(sent), size_of(received)); first += kChunkBytes) {
    std::vector<Transfer> transfers;
    at::Tensor here, landing;
    if (first < size_of(sent)) {
      here = sent.narrow(0, first, std::min(kChunkBytes, sent.numel() - first)).to(world.device());
      transfers.push_back(Transfer::send(here, to));
    }
    if (first < size_of(received)) {
      landing = at::empty({std::min(kChunkBytes, received.numel() - first)}, received.options().device(world.device()));
      transfers.push_back(Transfer::receive(landing, from));
    }
    world.send_receive(std::move(transfers), kInMemory).wait();
    if (landing.defined()) received.narrow(0, first, landing.numel()).copy_(landing);
  }
}

std::string listed(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

bool MemoryCheckpoint::Part::is_intact() const { return bytes.defined() && sum_of(bytes) == sum; }

bool MemoryCheckpoint::keep(at::Tensor own, int64_t iteration, Group& world) {
  Kept made{.iteration = iteration, .own = {.bytes = std::move(own)}, .of_partner = {}};
  made.own.sum = sum_of(made.own.bytes);
  const at::Tensor facts =
      world.gathered(at::tensor({made.own.bytes.numel(), made.own.sum}, at::kLong), kInMemory).view({-1, 2});
  const int ward = ward_of(world);
  made.of_partner = {.bytes = empty_bytes(facts[ward][0].item<int64_t>()), .sum = facts[ward][1].item<int64_t>()};
  exchange_bytes(made.own.bytes, partner_of(world), made.of_partner.bytes, ward, world);
  const bool is_good = made.of_partner.is_intact();
  // Before the others answer: one that has their answer drops what came before.
  if (is_good) kept_.push_back(std::move(made));
  if (kept_.size() > 2) kept_.erase(kept_.begin());
  const bool are_all_good = world.reduced(is_good ? 1 : 0, ReduceOp::kMin, kInMemory) > 0;
  if (are_all_good) {
    kept_.erase(kept_.begin(), kept_.end() - 1);
  } else if (is_good) {
    kept_.pop_back();
  }
  return are_all_good;
}

std::optional<at::Tensor> MemoryCheckpoint::recover(Group& world, std::string& why) {
  const int size = world.size(), rank = world.rank();
  const at::Tensor newest = world.gathered(at::tensor({iteration()}, at::kLong), kInMemory);
  std::vector<int> lost, orphaned;
  int64_t agreed = -1;
  for (int one = 0; one < size; ++one) {
    const auto its = newest[one].item<int64_t>();
    if (its >= 0) agreed = agreed < 0 ? its : std::min(agreed, its);
    if (its < 0) lost.push_back(one);
    if (its < 0 && newest[(one + shift_) % size].item<int64_t>() < 0) orphaned.push_back(one);
  }
  if (!orphaned.empty()) {
    why = fmt::format("what {} held is in no memory: the partner that had a copy was lost too", listed(orphaned));
    return std::nullopt;
  }
  const auto held = std::ranges::find(kept_, agreed, &Kept::iteration);
  MEGALITH_CHECK(kept_.empty() || held != kept_.end(), "no checkpoint in memory of iteration {}", agreed);
  const Part ward = held == kept_.end() ? Part{} : held->of_partner;
  const at::Tensor facts =
      world.gathered(at::tensor({ward.bytes.defined() ? ward.bytes.numel() : 0, ward.sum}, at::kLong), kInMemory)
          .view({-1, 2});
  const int partner = partner_of(world), ward_rank = ward_of(world);
  const auto is_lost = [&](int one) { return std::ranges::binary_search(lost, one); };
  Part own = held == kept_.end() ? Part{} : held->own;
  for (int attempt = 1;; ++attempt) {
    if (is_lost(rank)) {
      own = {.bytes = empty_bytes(facts[partner][0].item<int64_t>()), .sum = facts[partner][1].item<int64_t>()};
    }
    exchange_bytes(is_lost(ward_rank) ? ward.bytes : at::Tensor(), ward_rank,
                   is_lost(rank) ? own.bytes : at::Tensor(), partner, world);
    const double damaged = own.is_intact() ? -1 : rank;
    const auto worst = static_cast<int>(world.reduced(damaged, ReduceOp::kMax, kInMemory));
    if (worst < 0) return own.bytes;
    if (attempt < kMostTries && is_lost(worst)) continue;
    why = fmt::format("what rank {} held was changed in memory or on its way", worst);
    return std::nullopt;
  }
}

}  // namespace megalith
