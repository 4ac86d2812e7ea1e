// What all ranks learn of a step once its gradients are complete, in one vector and one exchange: sums and weights of
// the losses, what the model observed, the squared norm of the gradient, votes to stop. The vector is made and stays on
// the model's device; a copy travels to the host, which reads it once, when it likes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/groups.h"
#include "device/transfer.h"
#include "metrics/observed_values.h"
#include "models/model.h"
#include "tasks/task.h"

namespace megalith {

class StepStatistics {
 public:
  // A vote to save or to stop, from 1; the highest that any rank gives counts.
  static constexpr int kMostVote = 4;

  // losses, observations  the same on all ranks, in one order
  // groups                outlives it
  StepStatistics(std::vector<std::string> losses, std::vector<ObservationSpec> observations, const Groups& groups,
                 at::Device device);

  // ---- What this rank has.
  void add(const ModelOutput& output);                                       // of one forward pass of a chunk
  void set_gradient(at::Tensor numbers) { gradient_ = std::move(numbers); }  // Optimizer::local_numbers()
  void vote(int reason) { vote_ = reason; }                                  // 0: to go on
  // What there is so far, as exchange() will sum it.
  at::Tensor local() const { return sums(); }

  // One all-reduce over the world, and one more where the model observes maxima. Every rank calls it, once. The host
  // does not wait for the device.
  void exchange();

  // ---- Of all ranks, on the device, after exchange().
  std::vector<ObservedTensor> observed() const;
  at::Tensor gradient() const { return reduced_gradient_; }  // as set_gradient() had it
  at::Tensor loss() const;                                   // the first of the losses, 0-d, beside gradient()

  // Waits until the numbers have come to the host. Again: nothing.
  void read();

  // ---- Of all ranks, on the host, after read().
  const std::vector<LossSum>& losses() const { return reduced_losses_; }
  std::vector<ObservedValues> observed_values() const;
  at::Tensor host_gradient() const { return host_gradient_; }
  int agreed_vote() const { return vote_; }

 private:
  struct Slot {
    ObservationSpec spec;
    int64_t begin = 0;    // in the vector of sums, or of maxima
    bool is_own = false;  // this rank's numbers count
    at::Tensor values;    // over this rank's forward passes
    int64_t num_passes = 0;
    at::Tensor reduced, host;
  };
  Slot& slot_of(const Observation& observation);
  at::Tensor sums() const;
  at::Tensor maxima() const;
  int64_t num_gradient_numbers() const;

  std::vector<std::string> losses_;
  const Groups& groups_;
  at::Device device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> loss_sums_;  // of each: its sum and its weight
  std::vector<Slot> slots_;
  int64_t num_sums_ = 0, num_maxima_ = 0;
  at::Tensor gradient_, reduced_gradient_, host_gradient_, reduced_loss_;  // the last: a sum and its weight
  HostCopy on_its_way_;                                                    // of the sums, and behind them the maxima
  bool is_read_ = false;
  int vote_ = 0;
  std::vector<LossSum> reduced_losses_;
};

}  // namespace megalith
