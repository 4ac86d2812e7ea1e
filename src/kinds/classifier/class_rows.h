// Rows of a classifier's data: a text or a pair of texts, and a label, by the names that GLUE and Hugging Face's data
// sets have. JSON lines, JSON lists, and columns of Parquet, Arrow, CSV and TSV files.
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

// A JSON row. UserError for a row without a text or a label, an empty text, an unknown label, and keys that nothing
// reads, other than a row's number (idx, id, index).
ClassRow class_row_of(const std::string& json, const std::string& where, const ClassifierOptions& classes);

// Calls on_row with each row of the files and folders, in order. UserErrors with the first of what is wrong in all of
// them, also where on_row throws a UserError; a file that mixes texts and pairs is wrong, and so is one without rows.
void read_class_rows(const std::vector<std::string>& paths, const ClassifierOptions& classes,
                     const std::function<void(ClassRow row)>& on_row);

}  // namespace megalith
