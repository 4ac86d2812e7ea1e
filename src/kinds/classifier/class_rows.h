// Rows of a classifier's data: a text or a pair of texts, and a label, with the key names of GLUE and Hugging Face's
// data sets. JSON lines, JSON lists, and columns of Parquet, Arrow, CSV and TSV files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/log.h"
#include "nn/classifier_options.h"

namespace megalith {

struct ClassRow {
  std::string where;  // "train.jsonl:7"
  std::string first, second;
  bool is_pair = false;
  double label = 0;  // a class, or the number
};

// Parses a JSON row. UserError for a row without a text or a label, an empty text, an unknown label, and unused keys
// other than a row's number (idx, id, index).
ClassRow class_row_of(const std::string& json, const std::string& where, const ClassifierOptions& classes);

// Calls on_row with each row of the files and folders, in order. UserErrors with the first problems of all of them,
// including UserErrors thrown by on_row; a file that mixes texts and pairs, or has no rows, is an error.
void read_class_rows(const std::vector<std::string>& paths, const ClassifierOptions& classes,
                     const std::function<void(ClassRow row)>& on_row);

}  // namespace megalith
