// Topics of `megalith inspect` that run a model, for tensor-by-tensor comparison with other frameworks.
#pragma once

#include "cli/command.h"

namespace megalith {

// `inspect logits --load_hf DIR --prompt_ids 1,2,3 --output FILE`: "logits" (s, v) fp32.
int inspect_logits(CommandContext& context);
CommandOptions inspect_logits_options();

// `inspect gradients --load_hf DIR --data_path PREFIX --output FILE`: the gradient of the first global batch's loss
// with respect to every canonical tensor, by its Hugging Face name, fp32; before clipping.
int inspect_gradients(CommandContext& context);
CommandOptions inspect_gradients_options();

}  // namespace megalith
