// Options that the model, the file or other options decide where they are not set.
#pragma once

#include <filesystem>
#include <optional>

#include "train/config.h"

namespace megalith {

void name_task_of_model(Resolved& resolved);
// A file under MI300X/ is meant for that GPU.
void name_device_of_file(Resolved& resolved, const std::optional<std::filesystem::path>& file);
// As in Hugging Face's Trainer, whose max_steps overrides num_train_epochs.
void prefer_steps_to_epochs(Resolved& resolved);
// As in TRL: dropout only in the policy would keep the loss from starting at ln 2.
void leave_out_dropout_of_pairs(Resolved& resolved);
void name_tokenizer_of_texts(Resolved& resolved);

}  // namespace megalith
