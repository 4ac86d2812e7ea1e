// Settings for a model's vectors of texts: from the options, else the folder of a sentence-transformers model, else the
// model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kinds/encoder/text_vectors.h"
#include "train/config.h"

namespace megalith {

// The words of --pooling are those of Pooling after the first, which leaves it to the model.
enum class PoolingChoice { kOfModel, kCls, kMean, kLast, kPooler };

struct VectorOptions {
  PoolingChoice pooling = PoolingChoice::kOfModel;
  std::optional<bool> normalise;

  void visit(OptionVisitor& v);
};

// Texts that are read together by default.
inline constexpr int64_t kVectorRows = 32;

struct TextReading {
  VectorSettings settings{.rows = kVectorRows};
  int64_t longest = 0;  // tokens per text
};

// Adds what is wrong to errors.
TextReading choose_reading(const Resolved& resolved, const VectorOptions& options, std::vector<UserError>& errors);

// Describes the folder in --load_hf, if it is a sentence-transformers model. UserError if it cannot be read.
std::optional<SentenceFolder> find_sentence_folder(const Resolved& resolved);

}  // namespace megalith
