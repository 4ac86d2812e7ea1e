// What the lists of layouts of encoders have in common: how they are recomputed, and mistakes that must be seen.
#pragma once

#include <string>
#include <vector>

#include "layouts/layout.h"
#include "layouts/mutant_group.h"

namespace megalith::test {

class LayoutList {
 public:
  void add(Layout layout, const TinyRun& task) {
    layout.task = task;
    layouts_.push_back(std::move(layout));
  }
  const std::vector<Layout>& layouts() const { return layouts_; }

 private:
  std::vector<Layout> layouts_;
};

// Blocks of so many layers.
inline RecomputeOptions every_layer(int64_t layers = 1) {
  return {.recompute_granularity = "full", .recompute_method = "uniform", .recompute_num_layers = layers};
}
inline RecomputeOptions within_layers() {
  return {.recompute_granularity = "selective", .recompute_modules = {"core_attn", "layernorm", "mlp_act"}};
}
// The first layers again, and what the first of them keep on the host.
inline RecomputeOptions first_layers(int64_t layers, int64_t offloaded) {
  return {.recompute_granularity = "full",
          .recompute_method = "block",
          .recompute_num_layers = layers,
          .cpu_offloading_num_layers = offloaded};
}

// A collective done wrong, on every rank or on those of one pipeline stage.
inline Mistake wrong_exchange(std::string name, const WrongCollective& wrong, int only_stage = -1) {
  const auto change = [=](Groups& groups) {
    if (only_stage < 0 || groups.pp->rank() == only_stage) replace_groups(groups, wrong);
  };
  return {.name = std::move(name), .hooks = {.change_groups = change}};
}

// Fails the running test where two steps with the mistake are as those of one rank, or nearly so. Ranks that stop are
// seen, too.
void expect_mistake_is_seen(const Layout& layout, const Mistake& mistake);

}  // namespace megalith::test
