// See flux_encoder_options.h.
#include "train/flux_encoder_options.h"

namespace megalith {

void FluxEncoderOptions::visit(OptionVisitor& v) {
  v.group(
      "Encoders of FLUX",
      {.changes_numbers = false, .read_by = kPictureModels, .acts_in = {RunCommand::kGenerate, RunCommand::kEvaluate}});
  v.field("vae.path", vae,
          "Folder of the autoencoder (diffusers' AutoencoderKL), or a file ae.safetensors. Default: vae in the folder "
          "of the model.")
      .by_rank(ByRank::kSameContents);
  v.field("t5.path", t5, "Folder of T5's encoder. Default: text_encoder_2 and tokenizer_2 in the folder of the model.")
      .by_rank(ByRank::kSameContents);
  v.field("clip.path", clip,
          "Folder of CLIP's text encoder. Default: text_encoder and tokenizer in the folder of the model.")
      .by_rank(ByRank::kSameContents);
}

}  // namespace megalith
