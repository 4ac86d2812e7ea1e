#include "kinds/classifier/class_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "config/option_value.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/throw_errors.h"
#include "kinds/text/sft_rows.h"

namespace megalith {
namespace {

constexpr size_t kMostErrors = 10;
constexpr const char* kLabel = "label";

// Keys of the texts; pairs first, as one of their keys may also be that of a single text.
struct Form {
  std::string_view first, second;
};
constexpr std::array<Form, 9> kForms = {{{"sentence1", "sentence2"},
                                         {"premise", "hypothesis"},
                                         {"question1", "question2"},
                                         {"question", "sentence"},
                                         {"question", "passage"},
                                         {"text1", "text2"},
                                         {"text", "text_pair"},
                                         {"sentence", ""},
                                         {"text", ""}}};
constexpr std::array<std::string_view, 3> kNumbersOfRows = {"idx", "id", "index"};

std::string forms_text() {
  std::vector<std::string> forms;
  for (const Form& form : kForms) {
    forms.push_back(form.second.empty() ? std::string(form.first) : fmt::format("{} and {}", form.first, form.second));
  }
  return fmt::format("a row has label, and {}", fmt::join(forms, "; "));
}

std::string text_of(const Json& row, std::string_view key, const std::string& where) {
  std::string text = json_get<std::string>(row, key, where);
  if (trim(text).empty()) throw UserError(fmt::format("{}: {} is empty", where, key), "leave the row out");
  return text;
}

std::optional<double> number_in(const Json& value) {
  if (value.is_number()) return json_as<double>(value, kLabel);
  const std::string* text = try_text(value);
  return text != nullptr ? parse_number(*text) : std::nullopt;
}

double label_of(const Json& value, const std::string& where, const ClassifierOptions& classes) {
  const auto refuse = [&](const std::string& expected, const std::string& remedy) -> UserError {
    return UserError(fmt::format("{}: label is {}, expected {}", where, dump_json(value), expected), remedy);
  };
  const std::optional<double> number = number_in(value);
  if (classes.is_regression()) {
    if (number && std::isfinite(*number)) return *number;
    throw refuse("a number, because num_labels is 1", "give --num_labels and --label_names for classes");
  }
  if (const std::string* text = try_text(value)) {
    const auto found = std::ranges::find(classes.label_names, *text);
    if (found != classes.label_names.end()) return static_cast<double>(found - classes.label_names.begin());
    if (!number || !classes.label_names.empty()) {
      if (!classes.label_names.empty()) {
        throw refuse(fmt::format("one of {}", fmt::join(classes.label_names, ", ")),
                     "correct the row, or label_names, in the order of the classes");
      }
      throw refuse("a number, because label_names is not given",
                   "name the classes in their order: --label_names negative,positive");
    }
  }
  if (number && *number == std::floor(*number) && *number >= 0 && *number < static_cast<double>(classes.num_labels)) {
    return *number;
  }
  throw refuse(fmt::format("a class from 0 to {}", classes.num_labels - 1),
               number && *number == -1 ? "GLUE's test sets hide their labels by -1: take the validation set"
                                       : "correct the row, or raise num_labels");
}

}  // namespace

ClassRow class_row_of(const std::string& json, const std::string& where, const ClassifierOptions& classes) {
  const Json row = parse_json(json, where);
  if (!row.is_object()) throw UserError(fmt::format("{}: the row is no JSON object", where), forms_text());
  const auto form = std::ranges::find_if(kForms, [&](const Form& one) {
    return row.contains(one.first) && (one.second.empty() || row.contains(one.second));
  });
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  if (form == kForms.end()) {
    throw UserError(fmt::format("{}: the row has no text (its keys: {})", where, fmt::join(keys, ", ")), forms_text());
  }
  for (const std::string& key : keys) {
    if (key == form->first || key == form->second || key == kLabel || std::ranges::count(kNumbersOfRows, key) > 0) {
      continue;
    }
    throw UserError(fmt::format("{}: nothing reads the key {}", where, key),
                    fmt::format("leave it out; {}", forms_text()));
  }
  const Json* label = find_member(row, kLabel, where);
  if (label == nullptr) {
    throw UserError(fmt::format("{}: the row has no label (its keys: {})", where, fmt::join(keys, ", ")),
                    forms_text());
  }
  ClassRow made{.where = where, .first = text_of(row, form->first, where), .second = {}};
  made.is_pair = !form->second.empty();
  if (made.is_pair) made.second = text_of(row, form->second, where);
  made.label = label_of(*label, where, classes);
  return made;
}

void read_class_rows(const std::vector<std::string>& paths, const ClassifierOptions& classes,
                     const std::function<void(ClassRow row)>& on_row) {
  SftReader reader(paths, {}, {});
  std::vector<UserError> errors;
  std::optional<bool> are_pairs;
  int64_t num_rows = 0;
  while (errors.size() < kMostErrors) {
    const std::optional<SftLine> line = reader.next();
    if (!line) break;
    ++num_rows;
    try {
      ClassRow row = class_row_of(line->json, line->where(), classes);
      if (are_pairs.value_or(row.is_pair) != row.is_pair) {
        throw UserError(fmt::format("{}: the row has {}, and those before have {}", row.where,
                                    row.is_pair ? "a pair of texts" : "one text", row.is_pair ? "one" : "a pair"),
                        "a run reads rows of one form");
      }
      are_pairs = row.is_pair;
      on_row(std::move(row));
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  throw_errors(errors);
  if (num_rows == 0) throw UserError(fmt::format("{} has no rows", fmt::join(paths, ", ")), forms_text());
}

}  // namespace megalith
