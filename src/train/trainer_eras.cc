// A trainer's state between eras (eras.h), and whether replicas are equal; see trainer.h.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <utility>

#include "checkpoint/exchange.h"
#include "checkpoint/manifest.h"
#include "checkpoint/replica_check.h"
#include "core/checksum.h"
#include "core/error.h"
#include "train/trainer.h"

namespace megalith {
namespace {

// The memory that holds a checkpoint tensor.
std::vector<at::Tensor> memory_of(const CheckpointTensor& tensor) {
  return tensor.form ? tensor.form->parts : std::vector<at::Tensor>{tensor.local};
}

// Transfers of a state to ranks that join; then the way or a memory is at fault.
constexpr int kMostTransfers = 3;

std::string bytes_of_numbers(const at::Tensor& numbers) {
  if (!numbers.defined()) return "";
  const at::Tensor host = numbers.contiguous();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

at::Tensor numbers_of_bytes(const std::string& bytes) {
  at::Tensor numbers = at::empty({static_cast<int64_t>(bytes.size() / sizeof(double))}, at::kDouble);
  MEGALITH_CHECK(numbers.nbytes() == bytes.size() && !bytes.empty(), "{} bytes are no step's numbers", bytes.size());
  std::memcpy(numbers.mutable_data_ptr(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

// Without waiting for parameters: only this rank's share counts, and gathers of a lost era do not end.
CheckpointState Trainer::carried_state() const {
  CheckpointState state;
  state.tensors = kept_tensors();
  for (CheckpointTensor& tensor : built_.recipe_tensors()) state.tensors.push_back(std::move(tensor));
  fill_counters(state.train);
  return state;
}

CarriedRun Trainer::carry() {
  is_between_eras_ = true;
  settle();  // on a GPU, the step before
  if (train_step_->is_updating()) {
    issued_ = count_step(train_step_->complete({}));
    settle();
  }
  CarriedRun carried;
  const CheckpointState state = carried_state();
  for (const CheckpointTensor& tensor : state.tensors) {
    std::vector<at::Tensor>& copies = carried.tensors.emplace_back();
    for (const at::Tensor& one : memory_of(tensor)) copies.push_back(at::empty_like(one, at::kCPU).copy_(one));
  }
  carried.train = state.train;
  carried.was_saving = saver_ && saver_->is_pending();
  carried.last_saved_iteration = carried.was_saving ? -1 : last_saved_iteration_;
  carried.last_evaluated_iteration = last_evaluated_iteration_;
  carried.is_after_step = is_after_step_;
  carried.since_saved = since_saved_;
  carried.numbers = bytes_of_numbers(train_step_->numbers());
  carried.lacks_step = train_step_->awaits_numbers();
  return carried;
}

CarriedRun Trainer::carry_completed(const std::string& numbers) {
  issued_ = count_step(train_step_->complete(numbers_of_bytes(numbers)));
  return carry();
}

// Along the replica axis, from the giver's replica. Ranks that have a state keep their own.
void Trainer::give_state(CheckpointState& state, int giver, bool is_taker) {
  const Axis axis = replica_axis(resolved_.derived.data_parallel);
  Group& replicas = *groups_.of(axis);
  const int root = groups_.mesh.coordinate(axis, giver);
  for (const CheckpointTensor& tensor : state.tensors) {
    for (at::Tensor memory : memory_of(tensor)) {
      if (memory.numel() == 0) continue;
      const at::Tensor moved = memory.to(replicas.device(), /*non_blocking=*/false, /*copy=*/true).contiguous();
      replicas.broadcast(moved.view({-1}), root, "state for ranks that join").wait();
      if (is_taker) memory.copy_(moved);
    }
  }
}

// The giver's for all. Ranks that hold the same step may differ in what followed it: a loss cuts an evaluation or a
// checkpoint after some of them have ended it. Returns the first rank that received another text, or -1.
int Trainer::agree_on_counters(TrainState& state, int giver) {
  constexpr std::string_view kCounters = "counters of the run";
  Group& world = *groups_.world;
  const std::string text =
      broadcast_text(world, groups_.rank == giver ? train_state_text(state) : "", giver, kCounters);
  const auto sum = static_cast<int64_t>(checksum64(text));
  const at::Tensor sums = world.gathered(at::tensor({sum}, at::kLong), "checksums of counters");
  const at::Tensor other = sums.ne(sums[giver]).nonzero();
  if (other.size(0) > 0) return narrow<int>(other[0][0].item<int64_t>());
  state = parse_train_state(text, std::string(kCounters));
  return -1;
}

void Trainer::agree_on_work(int giver, const CarriedRun* carried) {
  constexpr std::string_view kWork = "work after the last step";
  Group& world = *groups_.world;
  const auto of_giver = [&](int64_t own) {
    const double given = groups_.rank == giver ? static_cast<double>(own) : -1;
    return static_cast<int64_t>(world.reduced(given, ReduceOp::kMax, kWork));
  };
  last_evaluated_iteration_ = of_giver(last_evaluated_iteration_);
  is_after_step_ = of_giver(is_after_step_ ? 1 : 0) > 0;
  // Saved once all have saved it; those that join have not been asked.
  const bool is_taker = carried == nullptr;
  const double saved = is_taker ? std::numeric_limits<double>::max() : static_cast<double>(last_saved_iteration_);
  last_saved_iteration_ = static_cast<int64_t>(world.reduced(saved, ReduceOp::kMin, kWork));
  has_lost_save_ = world.reduced(!is_taker && carried->was_saving ? 1 : 0, ReduceOp::kMax, kWork) > 0;
}

// Ranks without a state receive one, again if a bit was changed on the way; then all hold the same.
void Trainer::share_state(CheckpointState& state, int giver, bool is_taker) {
  const at::Tensor takers =
      groups_.world->gathered(at::tensor({int64_t{is_taker}}, at::kLong), "ranks without a state");
  const auto takes = [&](int rank) { return takers[rank].item<int64_t>() != 0; };
  for (int transfer = 1;; ++transfer) {
    if (takers.any().item<bool>()) give_state(state, giver, is_taker);
    const auto difference = find_replica_difference(state.tensors, groups_);
    int damaged = -1;
    std::string what = "the counters of the run";
    if (difference) {
      damaged = takes(difference->other_rank) ? difference->other_rank : difference->first_rank;
      what = difference->text();
    } else if ((damaged = agree_on_counters(state.train, giver)) < 0) {
      return;
    }
    if (difference && !takes(damaged)) {
      throw std::runtime_error(
          fmt::format("after iteration {} the replicas that go on do not hold the same: {}\n  a state was changed in "
                      "memory or on its way, and none can be trusted: resume from the newest checkpoint",
                      state.train.iteration, what));
    }
    if (transfer < kMostTransfers) {
      log_.warn("the state that rank {} received is not the one that rank {} sent ({}): it is sent again", damaged,
                giver, what);
    } else if (groups_.rank == damaged) {
      throw std::runtime_error(
          fmt::format("the state that this rank received from rank {} was changed on its way, {} times in a row ({}): "
                      "it is not trusted, and this rank leaves\n  start the replacement on another host or network",
                      giver, transfer, what));
    }
    // The others find it gone in the next exchange, and go on without it.
  }
}

void Trainer::take_over(const CarriedRun* carried, int giver) {
  const ProfileRange range("take over");
  CheckpointState state = carried_state();
  if (carried != nullptr) {
    MEGALITH_CHECK(carried->tensors.size() == state.tensors.size(), "{} tensors were carried, and {} are here",
                   carried->tensors.size(), state.tensors.size());
    for (size_t i = 0; i < state.tensors.size(); ++i) {
      const std::vector<at::Tensor> here = memory_of(state.tensors[i]);
      for (size_t part = 0; part < here.size(); ++part) {
        const at::Tensor& before = carried->tensors[i].at(part);
        MEGALITH_CHECK(before.sizes() == here[part].sizes(), "{} of {} has {} elements, and had {}",
                       state.tensors[i].key,
                       state.tensors[i].placement->pieces.empty() ? "?" : state.tensors[i].placement->pieces[0].name,
                       here[part].numel(), before.numel());
        at::Tensor(here[part]).copy_(before);
      }
    }
    state.train = carried->train;
    last_saved_iteration_ = carried->last_saved_iteration;
    last_evaluated_iteration_ = carried->last_evaluated_iteration;
    is_after_step_ = carried->is_after_step;
    since_saved_ = carried->since_saved;
  }
  // A loss may have cut the gathering of parameters from their owners.
  data_parallel_->publish();
  data_parallel_->wait_for_parameters();
  share_state(state, giver, /*is_taker=*/carried == nullptr);
  agree_on_work(giver, carried);
  take_counters(state.train);
  optimizer_->set_num_steps(state.train.optimizer_step);
}

// A line of what is not in a TrainState, that, a zero byte, and tensors one after another.
at::Tensor Trainer::pack_state() const {
  const CheckpointState state = carried_state();
  const bool is_saving = saver_ && saver_->is_pending();
  std::string head = fmt::format("{} {} {} {}\n{}", is_saving ? -1 : last_saved_iteration_, last_evaluated_iteration_,
                                 is_saving ? 1 : 0, is_after_step_ ? 1 : 0, train_state_text(state.train));
  head.push_back('\0');
  auto size = static_cast<int64_t>(head.size());
  for (const CheckpointTensor& tensor : state.tensors) {
    for (const at::Tensor& one : memory_of(tensor)) size += static_cast<int64_t>(one.nbytes());
  }
  at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), head.data(), head.size());
  auto place = static_cast<int64_t>(head.size());
  for (const CheckpointTensor& tensor : state.tensors) {
    for (const at::Tensor& one : memory_of(tensor)) {
      const at::Tensor host = one.to(at::kCPU).contiguous();
      std::memcpy(static_cast<char*>(bytes.mutable_data_ptr()) + place, host.const_data_ptr(), host.nbytes());
      place += static_cast<int64_t>(host.nbytes());
    }
  }
  return bytes;
}

CarriedRun Trainer::unpack_state(const at::Tensor& bytes) const {
  const auto* const data = static_cast<const char*>(bytes.const_data_ptr());
  const std::string head(data, std::find(data, data + bytes.numel(), '\0'));
  CarriedRun carried;
  std::istringstream line(head.substr(0, head.find('\n')));
  line >> carried.last_saved_iteration >> carried.last_evaluated_iteration >> carried.was_saving >>
      carried.is_after_step;
  carried.train = parse_train_state(head.substr(std::min(head.find('\n') + 1, head.size())), "a checkpoint in memory");
  auto place = static_cast<int64_t>(head.size()) + 1;
  for (const CheckpointTensor& tensor : carried_state().tensors) {
    std::vector<at::Tensor>& copies = carried.tensors.emplace_back();
    for (const at::Tensor& one : memory_of(tensor)) {
      const at::Tensor& copy = copies.emplace_back(at::empty(one.sizes(), one.options().device(at::kCPU)));
      MEGALITH_CHECK(place + static_cast<int64_t>(copy.nbytes()) <= bytes.numel(), "{} bytes are no part of this run",
                     bytes.numel());
      std::memcpy(copy.mutable_data_ptr(), data + place, copy.nbytes());
      place += static_cast<int64_t>(copy.nbytes());
    }
  }
  return carried;
}

void Trainer::announce(std::vector<EventRecord> events, int64_t last_made) {
  events_ = std::move(events);
  for (EventRecord& event : events_) {
    event.iteration = iteration_;
    event.begin_sample = event.end_sample = consumed_samples_;
    if (event.kind == "ranks_joined") continue;
    first_repeated_ = iteration_ + 1;
    last_repeated_ = std::max(first_repeated_, last_made);
    event.end_sample += resolved_.derived.batches.samples(consumed_samples_);
  }
}

void Trainer::check_replicas() {
  data_parallel_->wait_for_parameters();
  const auto difference = find_replica_difference(checkpoint_state().tensors, groups_);
  if (!difference) return;
  throw std::runtime_error(fmt::format(
      "check_sync after iteration {}: {}\n  nothing was saved since; the newest checkpoint is older. Reproduce "
      "with --kernels reference, or on other hardware",
      iteration_, difference->text()));
}

}  // namespace megalith
