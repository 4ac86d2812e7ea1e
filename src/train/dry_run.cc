#include "train/dry_run.h"

#include "comm/fake_group.h"
#include "config/help.h"
#include "train/layout_search.h"
#include "train/setup.h"
#include "train/step_plan.h"

namespace megalith {

DryRun make_dry_run(const Resolved& resolved, const std::filesystem::path& config_root) {
  const Groups groups(Mesh::from_options(resolved.config.parallel, resolved.derived.world_size), /*world_rank=*/0,
                      fake_group_factory(/*rank=*/0));
  const BuiltModel built = build_model(resolved, groups, at::kMeta);
  const std::vector<MemoryEstimate> stages = estimate_stages(resolved);
  DryRun run{count_model(built, resolved), estimate_largest(stages), {}, {}, {}};
  for (const MemoryEstimate& stage : stages) run.stage_bytes.push_back(stage.on_device());
  if (const auto& device = resolved.config.train.dry_run_device) {
    run.fit = find_device_fit(resolved, run.memory, *device, speed_on(*device, config_root));
    run.suggestion = suggested_layout(resolved, *device, config_root);
  }
  return run;
}

std::string dry_run_text(const Resolved& resolved, const DryRun& run) {
  return fmt::format("{}\n{}\n{}{}{}dry run: nothing was allocated\n",
                     resolved_yaml(*resolved.options, Shown::kNonDefault),
                     startup_report(resolved, run.numbers, nullptr, "not chosen in a dry run"),
                     memory_table(run.memory, resolved.derived.world_size), run.fit ? device_fit_text(*run.fit) : "",
                     run.suggestion.empty() ? "" : run.suggestion + "\n");
}

}  // namespace megalith
