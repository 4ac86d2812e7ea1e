// Whether a file may be written where a command was told to: what is there may be somebody's only copy.
//
// A file is replaced where --overwrite asks for it, and where its beginning shows that this program wrote it for the
// same purpose, as with a page that is drawn again and again. Folders of models and of checkpoints have rules of their
// own (train/outputs.h, cli/convert.cc).
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace megalith {

// What the beginning of a file of ours holds, for files that are recognised.
inline constexpr std::string_view kPageMark = " · Megalith</title>", kRunsPageMark = "runs · Megalith</title>",
                                  kVerdictsMark = "megalith verify",
                                  kLossPlotMark = "aria-label=\"Loss\">\n<style>\n  .paper {",
                                  kPipelineMark = "<style>text { font: 11px sans-serif; fill: #222 } .title {",
                                  kPipelineTraceMark = "{\"schedule\":\"", kRunRecordMark = "\"starts\": [",
                                  kMetricsMark = "{\"kind\":\"", kBenchMark = "{\"benchmark\":\"",
                                  kBlocksMark = "{\"block\":0,\"document\":";

// Nothing where there is no file, an empty one, a device or a pipe, or a file that holds the mark in its first 4096
// bytes; the error otherwise, unless it is overwritten.
// option  that names the file: "page_file"
// mark    of the command's own files; empty: they have none, and are replaced only when asked for
std::optional<UserError> check_replaceable(std::string_view option, const std::filesystem::path& path,
                                           std::string_view mark, bool overwrite);

}  // namespace megalith
