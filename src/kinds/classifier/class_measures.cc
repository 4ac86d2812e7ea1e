#include "kinds/classifier/class_measures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "metrics/perplexity.h"
#include "models/classifier_head.h"

namespace megalith {
namespace {

constexpr std::array<const char*, 5> kMoments = {"x", "y", "x x", "y y", "x y"};
constexpr std::array<const char*, 3> kCounts = {"right", "told", "there"};  // of each class

double ratio(double over, double under) { return under > 0 ? over / under : 0; }

// Pearson's, of sums; Gorodkin's is the same of counts.
double correlation(double xy, double xx, double yy) {
  return ratio(xy, std::sqrt(std::max(xx, 0.0) * std::max(yy, 0.0)));
}

}  // namespace

std::vector<std::string> class_sum_names(int64_t num_labels) {
  std::vector<std::string> names = {std::string(num_labels == 1 ? kSquaredErrorName : kClassLossName)};
  if (num_labels == 1) names.insert(names.end(), kMoments.begin(), kMoments.end());
  for (int64_t label = 0; num_labels > 1 && label < num_labels; ++label) {
    for (const char* count : kCounts) names.push_back(fmt::format("{} {}", count, label));
  }
  return names;
}

at::Tensor class_sums(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights) {
  const at::Tensor x = logits.to(at::kDouble), w = weights.to(at::kDouble);
  const int64_t count = x.size(1);
  std::vector<at::Tensor> sums = {(class_losses(x, labels) * w).sum()};
  const at::Tensor known = labels.masked_fill(class_weights(labels).logical_not(), 0);
  if (count == 1) {
    const at::Tensor told = x.squeeze(1), is = known.to(at::kDouble);
    for (const at::Tensor& moment : {told, is, told * told, is * is, told * is}) sums.push_back((moment * w).sum());
  } else {
    const at::Tensor classes = at::arange(count, known.options().dtype(at::kLong));
    const at::Tensor told = x.argmax(1).unsqueeze(1).eq(classes).to(at::kDouble);
    const at::Tensor is = known.to(at::kLong).unsqueeze(1).eq(classes).to(at::kDouble);
    const at::Tensor weight = w.unsqueeze(1);
    const at::Tensor of_classes =
        at::stack({(told * is * weight).sum(0), (told * weight).sum(0), (is * weight).sum(0)}, 1);
    for (const at::Tensor& sum : of_classes.flatten().unbind()) sums.push_back(sum);
  }
  const at::Tensor all = at::stack(sums);
  return at::stack({all, w.sum().expand_as(all)}, 1);
}

std::vector<LossSum> class_measures(const std::vector<LossSum>& sums, int64_t num_labels) {
  const double n = sums.at(0).weight;
  std::vector<LossSum> shown = {sums[0]};
  const auto show = [&](const char* name, double value) { shown.push_back({name, value * n, n}); };
  if (num_labels == 1) {
    const auto of = [&](size_t moment) { return sums.at(1 + moment).sum; };
    const double x = of(0), y = of(1);
    show("pearson correlation", correlation(n * of(4) - x * y, n * of(2) - x * x, n * of(3) - y * y));
    return shown;
  }
  double right = 0, both = 0, all_told = 0, all_there = 0, f1 = 0;
  for (int64_t label = 0; label < num_labels; ++label) {
    const auto of = [&](size_t what) { return sums.at(1 + static_cast<size_t>(label) * kCounts.size() + what).sum; };
    right += of(0);
    both += of(1) * of(2);
    all_told += of(1) * of(1);
    all_there += of(2) * of(2);
    const double of_class = ratio(2 * of(0), of(1) + of(2));
    if (num_labels > 2) f1 += of_class / static_cast<double>(num_labels);
    if (num_labels == 2 && label == 1) f1 = of_class;
  }
  show(kClassAccuracy, 100 * ratio(right, n));
  show("f1", 100 * f1);
  show("matthews correlation", correlation(right * n - both, n * n - all_told, n * n - all_there));
  return shown;
}

}  // namespace megalith
