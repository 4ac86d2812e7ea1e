// Decides whether a command may overwrite an output file, which may be somebody's only copy.
//
// A file is replaced with --overwrite, or if its beginning shows that this program wrote it for the same purpose, such
// as a redrawn page. Folders of models and checkpoints have their own rules (train/outputs.h, cli/convert.cc).
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace megalith {

// The marks at the beginning of our own files.
inline constexpr std::string_view kPageMark = " · Megalith</title>", kRunsPageMark = "runs · Megalith</title>",
                                  kVerdictsMark = "megalith verify",
                                  kLossPlotMark = "aria-label=\"Loss\">\n<style>\n  .paper {",
                                  kPipelineMark = "<style>text { font: 11px sans-serif; fill: #222 } .title {",
                                  kPipelineTraceMark = "{\"schedule\":\"", kRunRecordMark = "\"starts\": [",
                                  kMetricsMark = "{\"kind\":\"", kBenchMark = "{\"benchmark\":\"",
                                  kBlocksMark = "{\"block\":0,\"document\":";

// Nothing if there is no file, an empty one, a device or a pipe, or one with the mark in its first 4096 bytes;
// otherwise the error, unless overwriting.
// option  that names the file: "page_file"
// mark    of the command's own files; empty: replaced only when asked
std::optional<UserError> check_replaceable(std::string_view option, const std::filesystem::path& path,
                                           std::string_view mark, bool overwrite);

}  // namespace megalith
