// Configurations of users, as they would give them to `megalith doctor --parallel`: together they have every dimension
// and every part of the model, as layouts_for_mistakes() has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/parallel_check.h"

namespace megalith::test {

// A user's configuration, read and made small; keeps one rank's numbers from run to run.
struct DoctorCase {
  std::string name;
  bool has_experts = false;
  std::optional<OptimizerKind> rule;  // whose ranks exchange
  std::unique_ptr<Resolved> user;
  ToyWorld world;
  std::unique_ptr<ParallelCheck> check;

  // A check that has computed nothing yet.
  std::unique_ptr<ParallelCheck> fresh_check() const;
};
std::vector<DoctorCase> doctor_cases();

}  // namespace megalith::test
