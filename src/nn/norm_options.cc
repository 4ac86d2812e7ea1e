#include "nn/norm_options.h"

namespace megalith {

void NormOptions::visit_norm(OptionVisitor& v) {
  v.choice("normalization", normalization, {"LayerNorm", "RMSNorm"}, "Kind of normalisation.");
  v.choice("norm_placement", norm_placement, {"pre", "post", "sandwich", "post_ln"},
           "Where a layer normalises: pre what attention and the MLP read, post what they add to the residual stream "
           "(OLMo 2), sandwich both (Gemma 2), post_ln the sum of the stream and what they add (Hugging Face's BERT), "
           "which then is the stream; there is no final norm.")
      .read_by(kStacks);
  v.field("norm_epsilon", norm_epsilon, "Added to the variance or mean square in a norm.")
      .above(0)
      .alias("layernorm_epsilon")
      .always(kPictureModels, "1e-06");
  v.field("apply_layernorm_1p", apply_layernorm_1p,
          "Store a norm's weight less 1, so that 0 is its neutral value (Gemma).");
}

}  // namespace megalith
