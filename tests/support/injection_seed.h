// Seed of the tests that inject faults: `make proof` runs them again and again with other seeds.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace megalith::test {

// MEGALITH_INJECTION_SEED, or `usual`.
inline uint32_t injection_seed(uint32_t usual) {
  const char* const given = std::getenv("MEGALITH_INJECTION_SEED");
  return given == nullptr ? usual : static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
}

}  // namespace megalith::test
