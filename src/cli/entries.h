// Other trainers' scripts and commands as words of the program, so that a launcher's line needs one word changed:
//
//   torchrun --nproc_per_node 8 pretrain_gpt.py ARGS
//   torchrun --nproc_per_node 8 --no-python megalith pretrain_gpt.py ARGS
//   megalith trl sft ARGS
#pragma once

#include <string>
#include <vector>

namespace megalith {

// Replaces such a script, possibly a path, or command by ours and its options before ARGS
// (config/dialects/entries.table). Other words stay as they are.
std::vector<std::string> with_entry_resolved(std::vector<std::string> words);

}  // namespace megalith
