// A step's global statistics, exchanged once in one vector when gradients are complete: loss sums and weights,
// observations, squared gradient norm, votes to stop. It stays on the model's device; the host reads one copy later.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/groups.h"
#include "device/transfer.h"
#include "metrics/observed_values.h"
#include "models/model.h"
#include "train/task.h"

namespace megalith {

class StepStatistics {
 public:
  // Votes to save or stop, from 1; the highest of all ranks counts.
  static constexpr int kMostVote = 5;

  // losses, observations  the same on all ranks, in one order
  // groups                outlives it
  StepStatistics(std::vector<std::string> losses, std::vector<ObservationSpec> observations, const Groups& groups,
                 at::Device device);

  // ---- This rank's numbers
  void add(const ModelOutput& output);                                       // from one forward of a chunk
  void set_gradient(at::Tensor numbers) { gradient_ = std::move(numbers); }  // Optimizer::local_numbers()
  void vote(int reason) { vote_ = reason; }                                  // 0: continue
  // The sums so far, as for exchange().
  at::Tensor local() const { return sums(); }

  // One world all-reduce, another if the model observes maxima. Collective, once. The host does not wait for the
  // device.
  void exchange();
  // Instead of exchange(): its result on another rank of the same step.
  void take(const at::Tensor& numbers);
  // The exchanged numbers, on the host, opaque. Waits for them.
  const at::Tensor& numbers() const { return on_its_way_.wait(); }

  // ---- Global, on the device, after exchange()
  std::vector<ObservedTensor> observed() const;
  at::Tensor gradient() const { return reduced_gradient_; }  // as in set_gradient()
  at::Tensor loss() const;                                   // the first loss, 0-d, on gradient()'s device

  // Waits for the host copy. Idempotent.
  void read();

  // ---- Global, on the host, after read()
  const std::vector<LossSum>& losses() const { return reduced_losses_; }
  std::vector<ObservedValues> observed_values() const;
  at::Tensor host_gradient() const { return host_gradient_; }
  int agreed_vote() const { return vote_; }

 private:
  struct Slot {
    ObservationSpec spec;
    int64_t begin = 0;    // in the vector of sums or maxima
    bool is_own = false;  // this rank's numbers count
    at::Tensor values;    // over this rank's forward passes
    int64_t num_passes = 0;
    at::Tensor reduced, host;
  };
  Slot& slot_of(const Observation& observation);
  at::Tensor sums() const;
  at::Tensor maxima() const;
  // all: reduced sums, then maxima, where ranks meet
  void distribute(const at::Tensor& all);
  int64_t num_gradient_numbers() const;

  std::vector<std::string> losses_;
  const Groups& groups_;
  at::Device device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> loss_sums_;  // sum and weight of each
  std::vector<Slot> slots_;
  int64_t num_sums_ = 0, num_maxima_ = 0;
  at::Tensor gradient_, reduced_gradient_, host_gradient_, reduced_loss_;  // last: sum and weight
  HostCopy on_its_way_;                                                    // sums, then maxima
  bool is_read_ = false;
  int vote_ = 0;
  std::vector<LossSum> reduced_losses_;
};

}  // namespace megalith
