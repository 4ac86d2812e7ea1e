// What a picture or a page carries of its own curves, so that a run that is resumed goes on drawing them: JSON that the
// next program reads back from the file.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "metrics/long_series.h"

namespace megalith {

// {"name", "x", "y"}: what is drawn; y is null where it is no number.
Json points_of(const PlotSeries& series);

// {"name", "x", "y", "of": points a bin, "count": points that were added}; y is null where it is no number.
Json history_of(const LongSeries& series);

// Adds the points up to and with `last_x` to a series that has none yet. UserError when the JSON is something else.
void restore_history(const Json& history, double last_x, LongSeries& series, const std::string& where);

// JSON for the inside of an element of HTML or SVG: '<', '>' and '&' are written as JSON's escapes.
std::string embedded_json(const Json& value);

// What stands between two marks in the file, parsed; nothing when there is no file, or no such part in it.
std::optional<Json> find_embedded_json(const std::filesystem::path& path, std::string_view before,
                                       std::string_view after);

}  // namespace megalith
