#include "planner/failures.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "config/option.h"

namespace megalith {
namespace {

constexpr double kHour_s = 3600, kDay_s = 86400;

double mtbf_s(const FailureOptions& options) {
  return options.gpu_mtbf_hours * kHour_s / static_cast<double>(options.gpus);
}

class Months {
 public:
  Months(const FailureOptions& options, double interval_s)
      : options_(options), interval_s_(interval_s), random_(static_cast<uint64_t>(options.seed)) {}

  Goodput run() {
    const double end = options_.days * kDay_s;
    double next_failure = draw(mtbf_s(options_));
    double next_straggler = draw_straggler();
    while (now_ < end) {
      const double work_end = now_ + (interval_s_ - since_save_) / speed();
      const double event = std::min({work_end, next_failure, next_straggler, straggles_until_, replica_back_, end});
      work_until(event);
      if (event == end) break;
      if (event == next_failure) {
        fail();
        next_failure = now_ + draw(mtbf_s(options_));
      } else if (event == next_straggler) {
        straggles_until_ = now_ + options_.slow_gpu_s;
        next_straggler = now_ + draw_straggler();
      } else if (event == straggles_until_) {
        straggles_until_ = kNever;
      } else if (event == replica_back_) {
        --missing_replicas_;
        replica_back_ = missing_replicas_ > 0 ? now_ + options_.restart_s : kNever;
      } else {
        pause(options_.checkpoint_s, result_.saving);
        since_save_ = 0;
      }
    }
    result_.interval_s = interval_s_;
    result_.effective = progress_ / now_;
    for (double* share : {&result_.saving, &result_.lost_work, &result_.restarting, &result_.fewer_replicas,
                          &result_.stragglers}) {
      *share /= now_;
    }
    return result_;
  }

 private:
  static constexpr double kNever = HUGE_VAL;

  double draw(double mean) { return std::exponential_distribution<double>(1 / mean)(random_); }
  double draw_straggler() {
    if (options_.slow_gpu_mtbf_hours <= 0) return kNever;
    return draw(options_.slow_gpu_mtbf_hours * kHour_s / static_cast<double>(options_.gpus));
  }
  double replica_share() const {
    return 1 - static_cast<double>(missing_replicas_) / static_cast<double>(options_.replicas);
  }
  // The rate of progress.
  double speed() const {
    return replica_share() / (straggles_until_ == kNever ? 1 : options_.slow_gpu_slowdown);
  }

  void work_until(double time) {
    const double passed = time - now_, done = passed * speed();
    result_.fewer_replicas += passed * (1 - replica_share());
    result_.stragglers += passed * replica_share() - done;
    progress_ += done;
    since_save_ += done;
    now_ = time;
  }
  // Failures during a pause are rare, and counted after it.
  void pause(double seconds, double& share) {
    now_ += seconds;
    share += seconds;
  }
  void fail() {
    ++result_.failures;
    if (missing_replicas_ + 1 < options_.replicas) {
      // The others keep the state: nothing is lost.
      pause(options_.replica_stall_s, result_.restarting);
      ++missing_replicas_;
      if (replica_back_ == kNever) replica_back_ = now_ + options_.restart_s;
      return;
    }
    result_.lost_work += since_save_;
    progress_ -= since_save_;
    since_save_ = 0;
    missing_replicas_ = 0;
    straggles_until_ = replica_back_ = kNever;
    pause(options_.restart_s, result_.restarting);
  }

  const FailureOptions& options_;
  const double interval_s_;
  std::mt19937_64 random_;
  double now_ = 0, progress_ = 0, since_save_ = 0;
  double straggles_until_ = kNever, replica_back_ = kNever;
  int64_t missing_replicas_ = 0;
  Goodput result_;
};

}  // namespace

void FailureOptions::visit(OptionVisitor& v) {
  v.group("Failures");
  v.field("gpus", gpus, "GPUs of the run.").at_least(1).at_most(1'000'000);
  v.field("days", days, "How long to simulate.").unit("days").above(0).at_most(3650);
  v.field("gpu_mtbf_hours", gpu_mtbf_hours,
          "Mean time between failures of a GPU with its share of the machine. Default: Llama 3's report, 419 in 54 "
          "days of 16,384.")
      .unit("hours")
      .above(0);
  v.field("checkpoint_s", checkpoint_s, "How long a save stops training.").unit("seconds").above(0);
  v.field("checkpoint_interval_s", checkpoint_interval_s, "Training between saves. Default 0: the best.")
      .unit("seconds")
      .at_least(0);
  v.field("restart_s", restart_s, "From a failure to training again.").unit("seconds").at_least(0);
  v.field("replicas", replicas, "Data-parallel replicas that go on while a lost one restarts. Default 1: all stop.")
      .at_least(1);
  v.field("replica_stall_s", replica_stall_s, "How long the other replicas stop when one is lost.")
      .unit("seconds")
      .at_least(0);
  v.field("slow_gpu_mtbf_hours", slow_gpu_mtbf_hours, "Mean time until a GPU becomes slow. Default 0: never.")
      .unit("hours")
      .at_least(0);
  v.field("slow_gpu_slowdown", slow_gpu_slowdown, "How much longer a step takes with a slow GPU.").at_least(1);
  v.field("slow_gpu_s", slow_gpu_s, "How long until a slow GPU is replaced.").unit("seconds").above(0);
  v.field("seed", seed, "Seed of the random events.");
}

double optimal_interval_s(const FailureOptions& options) {
  return std::sqrt(2 * options.checkpoint_s * mtbf_s(options));
}

Goodput simulate_failures(const FailureOptions& options, double interval_s) {
  return Months(options, interval_s).run();
}

Goodput find_best_interval(const FailureOptions& options) {
  const double centre = optimal_interval_s(options);
  Goodput best = simulate_failures(options, centre);
  for (double factor = 0.25; factor <= 4.01; factor *= std::pow(2.0, 0.25)) {
    const Goodput one = simulate_failures(options, factor * centre);
    if (one.effective > best.effective) best = one;
  }
  return best;
}

}  // namespace megalith
