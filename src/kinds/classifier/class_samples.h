// Rows as padded sequences of a model, as Hugging Face's tokenizers make them:
//
//   decoder  the text's tokens, with the tokenizer's own special tokens; both in turn for a pair
//   BERT     [CLS] first [SEP], or [CLS] first [SEP] second [SEP], where the second's tokens have type 1
//
// All rows are kept in memory as ids.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "kinds/classifier/class_rows.h"

namespace megalith {

class Tokenizer;

namespace field {
// (b) float32: the class, or the number; NaN in rows beyond the last.
inline constexpr std::string_view kClassLabels = "class_labels";
}  // namespace field

struct ClassSampleOptions {
  ClassifierOptions classes;
  bool is_bert = false;
  bool truncates = false;    // cuts what is longer than a sequence, from the longer text's end
  int64_t sequence_length = 0, vocab_size = 0;
  int64_t rows_at_once = 1;  // rows are filled up to a multiple, with rows of weight 0
};

struct ClassSample {
  std::vector<int32_t> ids;
  int64_t num_first = 0;  // of type 0
  float label = 0;
};
using ClassSamples = std::vector<ClassSample>;

// UserErrors of read_class_rows(), for texts that are too long, and for a tokenizer without the tokens needed.
ClassSamples encode_class_rows(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                               const ClassSampleOptions& options);

// Rows [begin, end) of the samples.
std::shared_ptr<RowReader> make_class_reader(std::shared_ptr<const ClassSamples> samples, int64_t begin, int64_t end,
                                             std::string name, const ClassSampleOptions& options);

}  // namespace megalith
