// Protects output files: replaced only with --overwrite, or if their beginning shows that this program wrote them for
// the same purpose.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace megalith {

// Beginnings of our own files.
inline constexpr std::string_view kPageMark = " · Megalith</title>", kRunsPageMark = "runs · Megalith</title>",
                                  kVerdictsMark = "megalith verify",
                                  kLossPlotMark = "aria-label=\"Loss\">\n<style>\n  .paper {",
                                  kPipelineMark = "<style>text { font: 11px sans-serif; fill: #222 } .title {",
                                  kPipelineTraceMark = "{\"schedule\":\"", kRunRecordMark = "\"starts\": [",
                                  kMetricsMark = "{\"kind\":\"", kBenchMark = "{\"benchmark\":\"",
                                  kBlocksMark = "{\"block\":0,\"document\":", kMlperfMark = ":::MLLOG ";

// Null if the file is missing, empty, not regular, or has the mark in its first 4096 bytes, or with `overwrite`.
//   option  that names the file: "page_file"
//   mark    empty: needs `overwrite`
std::optional<UserError> check_replaceable(std::string_view option, const std::filesystem::path& path,
                                           std::string_view mark, bool overwrite);

}  // namespace megalith
