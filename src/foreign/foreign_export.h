// Stored models, with their optimizer's state, in other trainers' forms: what foreign_checkpoint.h reads.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "checkpoint/convert.h"
#include "core/log.h"

namespace megalith {

struct ForeignTarget;  // foreign_target.h
// "torchtitan", "dcp", "torch_dist"; null for others.
const ForeignTarget* find_foreign_target(std::string_view word);

struct ForeignExport {
  bool with_optimizer = true;
  bool overwrite = false;  // a folder of torch.distributed.checkpoint that is there
};
// Returns the folder, which is `root` or has its iteration's name there, and appears whole. Memory: a tensor.
// UserError, before anything is written, for what the form has no place for: kinds of models, parameters, optimizers.
std::filesystem::path save_foreign(const ForeignTarget& target, const std::filesystem::path& root,
                                   const StoredModel& model, const ForeignExport& settings, Logger& log);

}  // namespace megalith
