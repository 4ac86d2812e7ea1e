#include "launch/roll_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"

namespace megalith {

int64_t Era::newest_iteration() const {
  return iterations.empty() ? -1 : *std::max_element(iterations.begin(), iterations.end());
}

int Era::giver() const {
  return narrow<int>(std::max_element(iterations.begin(), iterations.end()) - iterations.begin());
}

std::string to_json(const Era& era) {
  return dump_json(Json{{"number", era.number},
                        {"seats", era.seats},
                        {"iterations", era.iterations},
                        {"left", era.left},
                        {"joined", era.joined}});
}

Era era_from_json(std::string_view text) {
  constexpr const char* kWhere = "a roll call's verdict";
  const Json json = parse_json(text, kWhere);
  const auto ints = [&](const char* name) {
    const auto numbers = json_get<std::vector<int64_t>>(json, name, kWhere);
    return std::vector<int>(numbers.begin(), numbers.end());
  };
  Era era{.number = json_get<int64_t>(json, "number", kWhere),
          .seats = ints("seats"),
          .iterations = json_get<std::vector<int64_t>>(json, "iterations", kWhere),
          .left = ints("left"),
          .joined = ints("joined"),
          .numbers = {}};
  MEGALITH_CHECK(era.seats.size() == era.iterations.size() && !era.seats.empty(), "{}: {} seats, {} iterations", kWhere,
                 era.seats.size(), era.iterations.size());
  return era;
}

}  // namespace megalith
