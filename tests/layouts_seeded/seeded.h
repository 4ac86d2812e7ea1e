// Mistakes that only the source can express: the test build computes with copies of src/nn and src/optim in which
// seed_mistakes.py has put wrong expressions beside the right ones. Chosen before ranks start.
#pragma once

#include <string>
#include <vector>

namespace megalith::seeded {

extern int g_mistake;                          // number of the one at work, from 0; -1: none
extern const std::vector<std::string> kNames;  // by number

}  // namespace megalith::seeded
