// Checks that a run's inputs exist: token files, checkpoints, weights; reported with other configuration errors, before
// allocation. A dry run opens the files too, without reading weights.
#pragma once

#include <vector>

#include "core/error.h"
#include "train/config.h"

namespace megalith {

// Paths of load, pretrained_checkpoint and load_hf. UserErrors for missing paths or wrong content. `load` may be empty,
// and missing if the run saves there.
//   must_be_there  without `load` there is no model
void check_weight_paths(const Resolved& resolved, bool must_be_there);

// Files in those paths, for a known architecture: headers and lists, not weights. Checkpoints only in a dry run; a run
// looks for an intact one itself.
std::vector<UserError> check_weights(Resolved& resolved);

// Files named by data options, as the model's kind reads them; remote hub names are left to HubPaths.
std::vector<UserError> check_data(Resolved& resolved);
// Errors where no data is named; a dry run gets a note instead.
std::vector<UserError> no_data(Resolved& resolved);

// Data sets prepared with another tokenizer than the run's, unless allow_other_tokenizer.
void append_other_tokenizers(const Resolved& resolved, std::vector<UserError>& errors);

}  // namespace megalith
