// A classifier of sequences on a decoder's layers, as Hugging Face's …ForSequenceClassification:
//
//   decoder  score( norm(x) of the last token that is not padding )
//   BERT     classifier( dropout( pooler( x of the first token ) ) )
//
// With one label the logit is the number itself. All weights are whole. Under context parallelism every rank computes
// with a token of its own, to issue the same collectives; only the rank that has the token that is read counts.
#pragma once

#include "models/input_spec.h"

namespace megalith {

namespace input {
// The class, or with one label the number.
inline constexpr InputSpec kClassLabels{"class_labels", {InputSize::kRows}, at::kFloat};
}  // namespace input
inline constexpr InputSpec kClassifierInputs[] = {input::kClassLabels};

// labels (b); NaN: the row has none, and counts nothing.
at::Tensor class_weights(const at::Tensor& labels);  // (b) bool
// logits (b, n) wide, labels as above -> (b): the cross-entropy, or with one label the squared error.
at::Tensor class_losses(const at::Tensor& logits, const at::Tensor& labels);

// The share of right classes in percent.
inline constexpr const char* kClassAccuracy = "accuracy";

}  // namespace megalith
