// Mistakes that a parallel trainer can make, each put into a run from outside: collectives changed on their way, wrong
// placements, wrong data, a data parallelism that forgets. A row of rows.txt must show every one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layouts/rows.h"

namespace megalith::test {

enum class MistakeSource {
  kHooks,    // the ranks have it
  kBuild,    // the single rank has it, too: where it cannot do harm
  kFormula,  // of the build, and one rank is as wrong as many: only a single rank from before shows it
};

// Members may be empty.
struct Mistake {
  std::string name;
  CheckHooks hooks;
  std::function<PipelinePlan(PipelinePlan plan)> change_pipeline;  // the plan that ranks are built by
  std::optional<bool> is_of_experts;  // the rows that are tried: those with experts, those without; unset: all
  std::optional<OptimizerKind> rule;  // and those with this rule, whose ranks exchange; unset: those without such
  MistakeSource source = MistakeSource::kHooks;
};

std::vector<Mistake> seeded_mistakes();

// Tries rows with the mistake until one shows it, and prints which. Fails the running test when none does.
void expect_seen(const Mistake& mistake, std::vector<LayoutRow>& rows);

}  // namespace megalith::test
