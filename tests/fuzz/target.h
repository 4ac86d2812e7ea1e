// What is fuzzed: for each kind of file that comes from outside, good examples and a function that opens and uses one.
//
// A function may throw UserError, which is how a file is refused. Everything else is a finding: another exception, a
// report of a sanitizer, an input that takes seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::fuzz {

using Random = std::mt19937_64;

inline size_t below(size_t bound, Random& random) { return bound == 0 ? 0 : static_cast<size_t>(random() % bound); }

// Files for the readers, in a folder that goes at the end.
class Scratch {
 public:
  Scratch();
  ~Scratch() { remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::filesystem::path path(std::string_view name) const { return folder_ / name; }
  // Replaces or creates the file, without bringing it to disk.
  std::filesystem::path put(std::string_view name, std::string_view content) const;
  void remove() const;

 private:
  std::filesystem::path folder_;
};

struct Target {
  std::string name;
  std::vector<std::string> seeds;  // good inputs
  std::vector<std::string> words;  // that belong to the format: damage may put them anywhere
  std::function<void(std::string_view input)> run;
  // Changes that keep the form of the format (mutate.h); nothing: only bytes are changed.
  std::function<std::string(const std::string& input, Random& random)> mutate;
  // What the last run cost, as shares of what its input may cost, for readers that promise a bound: above 1 is a
  // finding, and the dearest inputs are changed further.
  std::function<std::vector<double>()> costs = {};
};

std::vector<Target> tokenizer_targets(const Scratch& scratch);
std::vector<Target> data_targets(const Scratch& scratch);
std::vector<Target> sft_targets(const Scratch& scratch);
std::vector<Target> configuration_targets(const Scratch& scratch);
std::vector<Target> picture_targets(const Scratch& scratch);
std::vector<Target> checkpoint_targets(const Scratch& scratch);
// Readers with a fault built in, which show that faults are found.
std::vector<Target> planted_targets(const Scratch& scratch);

// A property that must hold whatever the input is.
inline void require(bool holds, const char* property) {
  if (!holds) throw std::logic_error(property);
}

// Several files in one input: texts with a line between them that none contains.
inline constexpr std::string_view kBetweenFiles = "\n--8<-- next file --8<--\n";
std::string joined(const std::vector<std::string>& files);
// Exactly `count`; what is missing is empty.
std::vector<std::string> divided(std::string_view input, size_t count);

}  // namespace megalith::fuzz
