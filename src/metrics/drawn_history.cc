#include "metrics/drawn_history.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace megalith {
namespace {

// Finer than a pixel.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.6g}", value));
}

}  // namespace

Json points_of(const PlotSeries& series) {
  Json x = Json::array(), y = Json::array();
  for (size_t i = 0; i < series.x.size(); ++i) {
    x.push_back(static_cast<int64_t>(series.x[i]));
    y.push_back(short_number(series.y[i]));
  }
  return {{"name", series.name}, {"x", x}, {"y", y}};
}

Json history_of(const LongSeries& series) {
  Json history = points_of(series.drawn());
  history["of"] = series.points_per_bin();
  history["count"] = series.num_points();
  return history;
}

void restore_history(const Json& history, double last_x, LongSeries& series, const std::string& where) {
  const Json& x = get_member(history, "x", where);
  const Json& y = get_member(history, "y", where);
  if (!x.is_array() || !y.is_array() || x.size() != y.size()) {
    throw UserError(fmt::format("{}: x and y are no lists of one length", where));
  }
  PlotSeries drawn;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto iteration = json_as<double>(x[i], where + ": x");
    if (iteration > last_x) break;
    drawn.x.push_back(iteration);
    drawn.y.push_back(y[i].is_null() ? std::numeric_limits<double>::quiet_NaN() : json_as<double>(y[i], where + ": y"));
  }
  const int64_t most = int64_t{1} << 40;
  series.restore(drawn, json_get_whole(history, "of", 1, most, where),
                 json_get_whole(history, "count", 0, most, where));
}

std::string embedded_json(const Json& value) {
  std::string text;
  for (const char c : dump_json(value)) {
    if (c == '<' || c == '>' || c == '&') {
      text += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      text += c;
    }
  }
  return text;
}

std::optional<Json> find_embedded_json(const std::filesystem::path& path, std::string_view before,
                                       std::string_view after) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  const std::string text = read_file(path);
  const size_t begin = text.find(before);
  if (begin == std::string::npos) return std::nullopt;
  const size_t end = text.find(after, begin + before.size());
  if (end == std::string::npos) return std::nullopt;
  return parse_json(std::string_view(text).substr(begin + before.size(), end - begin - before.size()), path.string());
}

}  // namespace megalith
