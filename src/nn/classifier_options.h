// A sequence classifier's head: so many classes, or one number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct ClassifierOptions {
  int64_t num_labels = 2;                // 1: a number, by squared error
  std::vector<std::string> label_names;  // by class; empty: labels are numbers
  std::optional<double> classifier_dropout;

  void visit_classifier(OptionVisitor& v);
  bool is_regression() const { return num_labels == 1; }
};

std::vector<UserError> check_classifier(const ClassifierOptions& options);

}  // namespace megalith
