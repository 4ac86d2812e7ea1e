// Which places of the instrumented code were reached, as the compiler's hook reports them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::fuzz {

class Coverage {
 public:
  // What was reached before is forgotten.
  Coverage();
  // How many places were reached since the last call, by this or another thread, that never were before.
  size_t take_new();
  size_t num_places() const { return num_places_; }

 private:
  std::vector<uint8_t> seen_;
  size_t num_places_ = 0;
};

// What a run cost, which does not depend on the machine: basic blocks of the instrumented code that were executed, and
// bytes of memory that were there at most beyond those there at the beginning. One thread is counted.
struct Cost {
  int64_t num_blocks = 0, most_bytes = 0;
};
void begin_cost();
Cost cost_so_far();

}  // namespace megalith::fuzz
