// Rows of Parquet, Arrow and CSV files as JSON lines (arrow_plugin.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/text_source.h"

namespace megalith {

// By first bytes (Parquet, Arrow's file and stream formats) or name (.csv, .tsv, also compressed).
bool is_rows_file(const std::string& path);

// Binary columns, when all columns are asked for.
enum class RowBytes { kLeftOut, kBase64 };

// A line {"column": "text", …} for each row; without columns a line of all columns, nested ones as lists and objects.
// UserError: the file is damaged or lacks a column, a column holds no text, or this build cannot load Arrow.
std::unique_ptr<TextSource> open_rows(const std::string& path, const std::vector<std::string>& columns,
                                      RowBytes bytes = RowBytes::kLeftOut);

}  // namespace megalith
