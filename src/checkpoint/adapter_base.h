// The checksum of the model that adapters belong to, stored with them. Covers tensors' names, types and shapes, and
// samples of up to 64 KiB each: trainings differ everywhere, and large models are not read twice. Another dtype is
// another base: adapters were trained with rounded weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/tensor_store.h"
#include "comm/group.h"
#include "config/record.h"

namespace megalith {

// In a folder of adapters; PEFT ignores it.
inline constexpr const char* kAdapterBaseFile = "adapter_base.json";

// 32 hexadecimal digits.
std::string checksum_of_weights(const TensorStore& store);

// A Hugging Face folder's, however divided into files. UserError if unreadable. Collective: the first rank reads.
std::string checksum_of_base(const std::filesystem::path& folder, Group& world);

// Null if PEFT wrote the folder. UserError if malformed.
std::optional<std::string> stored_base_of(const std::filesystem::path& adapters);
void write_base(const std::filesystem::path& adapters, const std::string& base);

// In a checkpoint's record.
std::optional<std::string> stored_base_of(const Configuration& configuration);
void remember_base(const std::string& base, Configuration& configuration);

// UserError if the stored base is not `base`, that of `folder`.
//   adapters  their path, for the message
void check_base(const std::optional<std::string>& stored, const std::string& base, const std::string& adapters,
                const std::filesystem::path& folder);

}  // namespace megalith
