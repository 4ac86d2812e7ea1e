#include "nn/classifier_options.h"

#include <set>

#include "nn/option_rules.h"

namespace megalith {

void ClassifierOptions::visit_classifier(OptionVisitor& v) {
  v.group("Classification", kOfModel.of(kClassifiers));
  v.field("num_labels", num_labels,
          "Classes that a sequence is one of. 1: the label is a number, which is learned by its squared error.")
      .within(1, kMostWidth);
  v.field("label_names", label_names,
          "Names of the classes, in their order. Rows may then have the name as their label. Default: labels are "
          "numbers from 0.")
      .changes_weights(false)
      .in_toy(InToy::kDefault);
  v.field("classifier_dropout", classifier_dropout,
          "Dropout of what the classifier reads. Default: with is_causal 0, otherwise hidden_dropout, as Hugging "
          "Face's classes have it.")
      .within(0, 1)
      .changes_weights(false);
}

std::vector<UserError> check_classifier(const ClassifierOptions& options) {
  std::vector<UserError> errors;
  const int64_t count = std::ssize(options.label_names);
  if (count > 0 && count != options.num_labels) {
    errors.emplace_back(fmt::format("label_names has {}, and num_labels is {}", count, options.num_labels),
                        "give one name for each class");
  }
  if (std::set(options.label_names.begin(), options.label_names.end()).size() < options.label_names.size()) {
    errors.emplace_back("label_names has a name twice", "give each class a name of its own");
  }
  return errors;
}

}  // namespace megalith
