// Rows of classifiers, and what is measured of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"
#include "kinds/classifier/class_measures.h"
#include "kinds/classifier/class_rows.h"

namespace megalith {
namespace {

ClassifierOptions classes(int64_t num_labels, std::vector<std::string> names = {}) {
  ClassifierOptions options;
  options.num_labels = num_labels;
  options.label_names = std::move(names);
  return options;
}

// "first|second|label", or the message.
std::string read(const std::string& json, const ClassifierOptions& options) {
  try {
    const ClassRow row = class_row_of(json, "f:3", options);
    return fmt::format("{}|{}|{}", row.first, row.second, row.label);
  } catch (const UserError& error) {
    return error.message();
  }
}

TEST(ClassRows, AreReadByTheNamesOfPublishedSets) {
  const ClassifierOptions two = classes(2, {"no", "yes"}), numbers = classes(2), score = classes(1);
  const std::tuple<const char*, ClassifierOptions, const char*> cases[] = {
      {R"({"sentence": "a", "label": 1, "idx": 7})", numbers, "a||1"},
      {R"({"text": "a", "label": "yes"})", two, "a||1"},
      {R"({"text": "a", "label": "1"})", numbers, "a||1"},
      {R"({"question": "a", "sentence": "b", "label": "no"})", two, "a|b|0"},
      {R"({"sentence1": "a", "sentence2": "b", "label": 2.5, "id": 1})", score, "a|b|2.5"},
      {R"({"premise": "a", "hypothesis": "", "label": 1})", numbers, "f:3: hypothesis is empty"},
      {R"({"text": " ", "label": 1})", numbers, "f:3: text is empty"},
      {R"({"text": "a"})", numbers, "f:3: the row has no label (its keys: text)"},
      {R"({"text": "a", "label": null})", numbers, "f:3: the row has no label (its keys: label, text)"},
      {R"({"label": 1, "words": "a"})", numbers, "f:3: the row has no text (its keys: label, words)"},
      {R"({"text": "a", "label": 1, "weight": 2})", numbers, "f:3: nothing reads the key weight"},
      {R"({"text": "a", "label": 2})", numbers, "f:3: label is 2, expected a class from 0 to 1"},
      {R"({"text": "a", "label": -1})", numbers, "f:3: label is -1, expected a class from 0 to 1"},
      {R"({"text": "a", "label": 0.5})", numbers, "f:3: label is 0.5, expected a class from 0 to 1"},
      {R"({"text": "a", "label": "maybe"})", two, "f:3: label is \"maybe\", expected one of no, yes"},
      {R"({"text": "a", "label": "yes"})", numbers,
       "f:3: label is \"yes\", expected a number, because label_names is not given"},
      {R"({"text": "a", "label": true})", numbers, "f:3: label is true, expected a class from 0 to 1"},
      {R"({"text": "a", "label": "x"})", score, "f:3: label is \"x\", expected a number, because num_labels is 1"},
  };
  for (const auto& [json, options, expected] : cases) EXPECT_EQ(read(json, options), expected) << json;
}

std::map<std::string, double> measures(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights) {
  const int64_t n = logits.size(1);
  const at::Tensor pairs = class_sums(logits, labels, weights);
  const std::vector<std::string> names = class_sum_names(n);
  EXPECT_EQ(pairs.size(0), std::ssize(names));
  std::vector<LossSum> sums;
  for (int64_t i = 0; i < pairs.size(0); ++i) {
    sums.push_back({names[static_cast<size_t>(i)], pairs[i][0].item<double>(), pairs[i][1].item<double>()});
  }
  std::map<std::string, double> shown;
  for (const LossSum& sum : class_measures(sums, n)) shown[sum.name] = sum.mean();
  return shown;
}

// Told 1 1 0 0 1 of 1 0 0 1 1; the last row counts nothing.
TEST(ClassMeasures, OfTwoClassesAreThoseOfTheirDefinitions) {
  const at::Tensor told = at::tensor({1, 1, 0, 0, 1, 0}, at::kLong);
  const at::Tensor logits = at::one_hot(told, 2).to(at::kFloat);
  const double nan = std::nan("");
  const auto shown = measures(logits, at::tensor({1.0, 0.0, 0.0, 1.0, 1.0, nan}, at::kFloat),
                              at::tensor({1, 1, 1, 1, 1, 0}).to(at::kBool));
  const double right = std::log1p(std::exp(-1.0)), wrong = std::log1p(std::exp(1.0));
  EXPECT_NEAR(shown.at("class loss"), (3 * right + 2 * wrong) / 5, 1e-12);
  EXPECT_NEAR(shown.at("accuracy"), 60, 1e-12);
  EXPECT_NEAR(shown.at("f1"), 100 * 2.0 * 2 / (3 + 3), 1e-12);
  // (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn))
  EXPECT_NEAR(shown.at("matthews correlation"), (2.0 * 1 - 1 * 1) / std::sqrt(3.0 * 3 * 2 * 2), 1e-12);
}

TEST(ClassMeasures, OfThreeClassesTheF1IsTheirMean) {
  const at::Tensor logits = at::one_hot(at::tensor({0, 1, 1, 0}, at::kLong), 3).to(at::kFloat);
  const auto shown = measures(logits, at::tensor({0.0, 1.0, 0.0, 0.0}, at::kFloat), at::ones({4}, at::kBool));
  EXPECT_NEAR(shown.at("f1"), 100 * (2.0 * 2 / 5 + 2.0 * 1 / 3 + 0) / 3, 1e-12);
  EXPECT_NEAR(shown.at("accuracy"), 75, 1e-12);
}

TEST(ClassMeasures, OfNumbersAreErrorAndCorrelation) {
  const at::Tensor labels = at::tensor({1.0, 2.0, 4.0}, at::kFloat);
  const auto shown = measures(labels.unsqueeze(1) * -2 + 1, labels, at::ones({3}, at::kBool));
  EXPECT_NEAR(shown.at("mse loss"), (4.0 + 25 + 121) / 3, 1e-12);
  EXPECT_NEAR(shown.at("pearson correlation"), -1, 1e-12);
  EXPECT_EQ(measures(at::ones({3, 1}), labels, at::ones({3}, at::kBool)).at("pearson correlation"), 0) << "no variance";
}

}  // namespace
}  // namespace megalith
