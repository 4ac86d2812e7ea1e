// Readers with a fault each, reached by an input that damage has to find: planted_test.py holds the driver to them.
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/file.h"
#include "fuzz/target.h"

namespace megalith::fuzz {
namespace {

// The fault happens when the input begins with "FA" and a third byte above 'Z'.
Target planted(const std::string& name, std::function<void(std::string_view)> fault) {
  Target target{name, {"a good input"}, {"FA"}, {}, {}};
  target.run = [fault = std::move(fault)](std::string_view input) {
    if (input.empty()) throw UserError("the input is empty");
    if (input.size() < 3 || input[0] != 'F') return;
    if (input[1] != 'A') return;
    if (input[2] > 'Z') fault(input);
  };
  return target;
}

}  // namespace

std::vector<Target> planted_targets(const Scratch& scratch) {
  const auto costs = std::make_shared<std::vector<double>>(1);
  Target dear = planted("planted_cost", [costs](std::string_view) { *costs = {2}; });
  dear.costs = [costs] { return *costs; };
  return {
      dear,
      planted("planted_read",
              [](std::string_view input) {
                const std::vector<char> copy(input.begin(), input.end());  // on the heap, however short
                volatile const char* text = copy.data();
                volatile char behind = text[copy.size() + 1];
                static_cast<void>(behind);
              }),
      planted("planted_mapped_read",
              [&scratch](std::string_view input) {
                const MappedFile file(scratch.put("planted", input));
                volatile const std::byte* bytes = file.bytes().data();
                volatile std::byte behind = bytes[file.size()];
                static_cast<void>(behind);
              }),
      planted("planted_overflow",
              [](std::string_view input) {
                volatile int32_t large = INT32_MAX - 10;
                volatile int32_t sum = large + input[2];
                static_cast<void>(sum);
              }),
      planted("planted_exception", [](std::string_view input) { std::string(input).at(input.size() + 1); }),
      planted("planted_allocation",
              [](std::string_view input) { std::string(static_cast<size_t>(input[2]) << 24, 'x').shrink_to_fit(); }),
      planted("planted_loop",
              [](std::string_view input) {
                volatile bool goes_on = true;
                while (goes_on) {
                }
              }),
  };
}

}  // namespace megalith::fuzz
