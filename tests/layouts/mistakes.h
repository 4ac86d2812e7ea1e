// Mistakes that a parallel trainer can make, each put into a run from outside: collectives changed on their way, wrong
// placements, wrong data, a data parallelism that forgets. A row of rows.txt must show every one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layouts/rows.h"
#include "verify/type_check.h"

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

// Planted after the check of types was written.
std::vector<Mistake> mistakes_for_types();

// Tries rows with the mistake until one shows it, and prints which. Fails the running test when none does.
void expect_seen(const Mistake& mistake, std::vector<LayoutRow>& rows);

// The first row of which types tell of the mistake (verify/type_check.h), with what they tell; "" if none does. The row
// then comes first.
std::string found_by_types(std::vector<LayoutRow>& rows, const TypeHooks& hooks, std::optional<bool> is_of_experts);

}  // namespace megalith::test
