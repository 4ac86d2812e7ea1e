// Judges a run's evaluations: which were the best, and how many were in vain since. As Hugging Face's
// EarlyStoppingCallback: an evaluation is a gain if it is better than the best before it by more than the threshold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/best_options.h"

namespace megalith {

struct ShownFigure {
  std::string set;   // of ValidationRecord
  std::string name;  // "lm loss"
  double value = 0;
};

class BestWatch {
 public:
  explicit BestWatch(const BestOptions& options) : options_(options) {}

  bool is_on() const { return options_.is_on(); }
  // Chooses metric_for_best_model among an evaluation's figures, and returns its place. UserError if it is not there.
  // Must be called before add() and save().
  size_t choose(const std::vector<ShownFigure>& figures);
  // Judges evaluations in the order of iterations, each once. A figure that is not finite is no gain.
  void add(int64_t iteration, double value);
  // This iteration is one of the num_kept() best.
  bool keeps(int64_t iteration) const;
  bool ends_run() const {
    return options_.early_stopping_patience && num_in_vain_ >= *options_.early_stopping_patience;
  }

  struct Evaluation {
    int64_t iteration = 0;
    double value = 0;
  };
  const std::vector<Evaluation>& best() const { return best_; }  // from the best on
  int64_t num_in_vain() const { return num_in_vain_; }
  const std::string& metric() const { return metric_; }  // "lm_loss"

  // State by name, among a checkpoint's numbers. load() replaces it, before choose() or after; what was judged by
  // another metric is forgotten.
  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  bool is_better(double value, double than) const { return is_greater_better_ ? value > than : value < than; }
  void drop_surplus();
  void take(const std::map<std::string, double>& numbers);

  BestOptions options_;
  std::map<std::string, double> loaded_;
  std::string metric_;
  bool is_greater_better_ = false;
  std::vector<Evaluation> best_;
  int64_t last_iteration_ = -1, num_in_vain_ = 0;
};

}  // namespace megalith
