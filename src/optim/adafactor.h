// Adafactor as an update rule; takes every parameter. Keeps only row and column means of a matrix's second moment, so
// state is negligible; a vector's is whole.
//
//   s = g^2 + eps1;   b = 1 - step^decay_rate
//   r = b * r + (1 - b) * mean of s over a row;   c likewise over a column;   v = b * v + (1 - b) * s
//   u = g / sqrt(r * c / mean(r)), of a vector g / sqrt(v);   u = u / max(1, rms(u) / clip_threshold)
//   w = w - lr * max(eps2, rms(w)) * (u + weight_decay * w)
//
// As transformers' Adafactor without momentum, with the run's learning rate; each expert is a matrix. Ranks exchange
// only means (shared_sums.h), so steps do not depend on layout.
// Source: Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "optim/optimizer_options.h"
#include "optim/shared_sums.h"
#include "optim/state_layout.h"
#include "optim/update_rule.h"

namespace megalith {

class AdafactorRule : public UpdateRule {
 public:
  explicit AdafactorRule(const AdafactorOptions& options) : options_(options) {}

  std::string_view name() const override { return "Adafactor"; }
  Granularity granularity() const override { return Granularity::kSums; }
  bool takes(const Parameter& /*parameter*/) const override { return true; }
  std::vector<StateSpec> state(const Parameter& parameter) const override;
  void prepare(const DataParallel& data, const Groups& groups) override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  struct Layouts {
    explicit Layouts(const Parameter& parameter);
    StateLayout matrices;
    std::optional<StateLayout> rows, columns;  // unset for vectors
  };
  struct Work;

  void begin(Work& work, const UpdateStep& step) const;
  void move_state(Work& work, const UpdateStep& step) const;
  at::Tensor direction(const Work& work, size_t view) const;
  void move_master(const Work& work, const UpdateStep& step) const;

  AdafactorOptions options_;
  std::unique_ptr<SharedSums> sums_;
  std::map<const Parameter*, Layouts> layouts_;
};

}  // namespace megalith
