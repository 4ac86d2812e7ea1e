// The fastest layouts of a model on a cluster.
//
// Cheap rules prune first, then memory: of each layout with each micro-batch the least recomputation that fits counts,
// with the optimizer's state on the device and, where that asks for recomputation, on the host.
// Lower bounds of the step's time order the rest; the options' own rules are asked, and schedules simulated, from the
// lowest bound until none is below the last time that is shown. What layouts share is measured and priced once.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/config.h"
#include "train/step_plan.h"

namespace megalith {

// From what costs least: attention's output; all that is cheap; the first half of a stage's layers; all layers; and
// their inputs go to the host.
enum class LayoutRecompute { kNone, kSelective, kModules, kHalf, kFull, kOffloaded };

struct Layout {
  int64_t tp = 1, cp = 1, pp = 1, ep = 1, etp = 1, dp = 1, micro = 1, chunks = 1;
  std::string_view algorithm = "1f1b";
  bool is_fsdp = false;
  bool offloads_optimizer = false;  // its state is the host's
  bool adds_eight_bits = false;     // products in 8 bits, which the run does not ask for
  LayoutRecompute recompute = LayoutRecompute::kNone;

  std::string text(bool has_experts) const;  // "tp 2 cp 1 pp 1 mbs 2 zero-1"
};

// Options and values that make a run's layout this one; "null" unsets.
std::vector<std::pair<std::string, std::string>> settings_of(const Layout& layout, const Resolved& run);

// Units of all layouts that searches of one model met, whatever their clusters and batches. Thread-safe.
class KnownUnits {
 public:
  KnownUnits();
  ~KnownUnits();
  struct Measured;
  Measured& measured() { return *measured_; }

 private:
  std::unique_ptr<Measured> measured_;
};

struct FoundLayout {
  Layout layout;
  StepPlan plan;
};

struct FoundLayouts {
  std::vector<FoundLayout> best;  // fastest first
  size_t num_tried = 0, num_fitting = 0, num_refused = 0, num_simulated = 0;
  std::vector<std::pair<double, double>> points;  // seconds and bytes of what was simulated
};

struct LayoutSearchOptions {
  size_t num_shown = 10;
  bool with_eight_bits = false;  // a 16-bit run's layouts in 8 bits too, which changes numbers
  // Layouts that are not bounded or simulated by then are left out.
  std::optional<std::chrono::milliseconds> limit = {};
};

FoundLayouts find_layouts(const Resolved& run, const Cluster& cluster, KnownUnits& units,
                          const LayoutSearchOptions& options = {});

// True if the model has one kind of layer stack, as a search supposes.
bool is_searchable(const Resolved& run);

// One line that names another layout for a run of several ranks, if a search of a second finds one that is much faster
// on GPUs of this name; otherwise empty. Empty too without suggest_layout, and if the GPU's rates are not in
// config_root's file.
std::string suggested_layout(const Resolved& run, const std::string& gpu, const std::filesystem::path& config_root);

}  // namespace megalith
