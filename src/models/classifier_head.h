// A classifier of sequences on a decoder's layers, as Hugging Face's …ForSequenceClassification:
//
//   decoder  score( norm(x) of the last token that is not padding )
//   BERT     classifier( dropout( pooler( x of the first token ) ) )
//
// With one label the logit is the predicted number. Weights are not split. Under context parallelism every rank
// computes on some token, to issue the same collectives; only the rank that holds the token read counts.
#pragma once

#include "models/input_spec.h"

namespace megalith {

namespace input {
// Class, or the number with one label.
inline constexpr InputSpec kClassLabels{"class_labels", {InputSize::kRows}, at::kFloat};
}  // namespace input
inline constexpr InputSpec kClassifierInputs[] = {input::kClassLabels};

// labels (b); NaN: unlabelled row, weight 0.
at::Tensor class_weights(const at::Tensor& labels);  // (b) bool
// logits (b, n) wide, labels as above -> (b): cross-entropy, or squared error with one label.
at::Tensor class_losses(const at::Tensor& logits, const at::Tensor& labels);

// Percentage of rows classified correctly.
inline constexpr const char* kClassAccuracy = "accuracy";

}  // namespace megalith
