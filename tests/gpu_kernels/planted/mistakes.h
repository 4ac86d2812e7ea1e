// Which of the mistakes of seed_mistakes.py the kernels make: that which MEGALITH_PLANTED names, or none.
#pragma once

namespace megalith::testing {

extern const int planted_mistake;  // -1: none

}  // namespace megalith::testing
