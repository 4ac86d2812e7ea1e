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

}  // namespace megalith::fuzz
