// Mistakes that a parallel trainer can make, each put into a run from outside: collectives changed on their way, wrong
// placements, wrong data, a data parallelism that forgets. The layout matrix must see every one.
#pragma once

#include <vector>

#include "layouts/layout.h"

namespace megalith::test {

std::vector<Mistake> seeded_mistakes();

// Small layouts that together have every dimension and every part of the model.
std::vector<Layout> layouts_for_mistakes();

// Runs layouts of its kind with the mistake until one shows it far above the tolerance, and prints which. Fails the
// running test when none does.
void expect_caught(const Mistake& mistake);

}  // namespace megalith::test
