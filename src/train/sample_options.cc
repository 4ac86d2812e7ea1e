// See sample_options.h.
#include "train/sample_options.h"

#include <fmt/format.h>

namespace megalith {

void SampleOptions::visit(OptionVisitor& v) {
  v.group("Samples during training", {.changes_numbers = false});
  v.field("sample_interval", sample_interval,
          "After every so many iterations the model continues sample_prompt; the text goes to the log, to TensorBoard "
          "and to page_file. A model of pictures draws sample_prompt.")
      .unit("iterations")
      .at_least(1);
  v.field("sample_prompt", sample_prompt, "Text to continue, or what a picture shows.");
  v.field("sample_prompt_ids", sample_prompt_ids, "Token ids to continue, instead of a text.").read_by(kTextModels);
  v.field("sample_max_new_tokens", sample_max_new_tokens,
          "Longest continuation; default 64, or what max_position_embeddings leaves.")
      .unit("tokens")
      .at_least(1)
      .read_by(kTextModels);
  v.field("sample_steps", sample_steps,
          "Steps from noise to a picture. Default: 28 for a model with guidance_embed, else 4.")
      .within(1, 10000)
      .read_by(kPictureModels);
  v.field("sample_guidance", sample_guidance,
          "How closely a picture follows sample_prompt, of a model with guidance_embed. Default: 3.5.")
      .at_least(0)
      .read_by(kPictureModels);
  v.field("sample_folder", sample_folder,
          "Folder for the pictures, a PNG file each. Default: samples in the folder of save.")
      .read_by(kPictureModels);
}

std::vector<UserError> check_sample_options(const SampleOptions& options) {
  std::vector<UserError> errors;
  const bool has_ids = !options.sample_prompt_ids.empty();
  if (options.is_on() && !options.sample_prompt && !has_ids) {
    errors.emplace_back("sample_interval is given without a prompt",
                        "add --sample_prompt TEXT or --sample_prompt_ids 1,2,3");
  }
  if (options.sample_prompt && has_ids) {
    errors.emplace_back("sample_prompt and sample_prompt_ids are both given", "keep one of them");
  }
  if (options.is_on()) return errors;
  SampleOptions given = options, fresh;
  const OptionSet now(given), before(fresh);
  for (const auto& option : now.options()) {
    if (option->text() == before.find(option->name())->text()) continue;
    errors.emplace_back(fmt::format("{} is given without sample_interval", option->name()),
                        "say how often with --sample_interval");
  }
  return errors;
}

}  // namespace megalith
