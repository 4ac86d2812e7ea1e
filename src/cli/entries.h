// Megatron-LM scripts as words of the program, so that a launcher's line needs one word changed:
//
//   torchrun --nproc_per_node 8 pretrain_gpt.py ARGS
//   torchrun --nproc_per_node 8 --no-python megalith pretrain_gpt.py ARGS
#pragma once

#include <string>
#include <vector>

namespace megalith {

// Replaces such a script, possibly a path, by the command and its options before ARGS (config/dialects/entries.table).
// Other words stay as they are.
std::vector<std::string> with_entry_resolved(std::vector<std::string> words);

}  // namespace megalith
