// Reaches what fmt.cc must define: links only if it does.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <ctime>
#include <vector>

int main(int count, char** arguments) {
  const std::vector<double> numbers(static_cast<size_t>(count), 0.1);
  const std::string text = fmt::format("{} {:>8.3f} {:.3e} {} {:L} {:x} {} {:.{}}", count, 0.1, 1e-9f, 2.5L, count, 255,
                                       fmt::join(numbers, ", "), arguments[0], 3);
  fmt::print(stderr, "{} {:%Y-%m-%d} {}\n", text, fmt::gmtime(std::time_t{0}), fmt::format(fmt::runtime("{}"), true));
}
