// Whether what a run would open is there: token files, checkpoints, weights. Told with everything else that is wrong
// with a configuration, before anything is allocated. A dry run opens the files as well, and reads no weights.
#pragma once

#include <vector>

#include "core/error.h"
#include "train/config.h"

namespace megalith {

// The paths of load, pretrained_checkpoint and load_hf. UserErrors where something else lies there than the option
// takes, or nothing. A run may begin with an empty `load`, and with one that is missing where it is the folder to save
// to.
//   must_be_there  there is nothing to begin with but what `load` holds
void check_weight_paths(const Resolved& resolved, bool must_be_there);

// The files behind those paths, once the architecture is known: headers and lists, not the weights. Checkpoints only in
// a dry run, since a run itself looks for an intact one.
std::vector<UserError> check_weights(const Resolved& resolved);

// The token files; names of the hub that are not here are left to HubPaths. A dry run without data gets a note.
std::vector<UserError> check_data(Resolved& resolved);

// Data sets that were prepared with another tokenizer than the run has, unless allow_other_tokenizer.
void append_other_tokenizers(const Resolved& resolved, std::vector<UserError>& errors);

}  // namespace megalith
