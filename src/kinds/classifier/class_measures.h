// A classifier's measures in an evaluation, from sums that add up over ranks and batches.
//
//   classes  class loss, accuracy, f1, matthews correlation
//   numbers  mse loss, pearson correlation
//
// Percent, except correlations. F1 is that of class 1 if there are two classes, else the mean over all classes (macro),
// as in GLUE and scikit-learn; 0 for a class that is neither present nor predicted. A correlation without variance is
// 0.
// Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "train/task.h"

namespace megalith {

// Names of the sums for a number of labels; the loss comes first.
std::vector<std::string> class_sum_names(int64_t num_labels);
// logits (b, n), labels (b) of models/classifier_head.h, weights (b) 0 or 1 -> (names, 2) float64: sums and weights
at::Tensor class_sums(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weights);
// The loss and the measures above, from all sums.
std::vector<LossSum> class_measures(const std::vector<LossSum>& sums, int64_t num_labels);

}  // namespace megalith
