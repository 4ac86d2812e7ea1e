// Curves embedded as JSON in pictures and pages, for resumed runs to continue.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "metrics/long_series.h"

namespace megalith {

// {"name", "x", "y"}; y is null where not finite.
Json points_of(const PlotSeries& series);

// {"name", "x", "y", "of": points per bin, "count": points added}; y is null where not finite.
Json history_of(const LongSeries& series);

// Adds points with x <= last_x to an empty series. UserError if malformed.
void restore_history(const Json& history, double last_x, LongSeries& series, const std::string& where);

// Escapes '<', '>' and '&' for HTML and SVG.
std::string embedded_json(const Json& value);

// The JSON between two marks; null if file or marks are missing.
std::optional<Json> find_embedded_json(const std::filesystem::path& path, std::string_view before,
                                       std::string_view after);

}  // namespace megalith
