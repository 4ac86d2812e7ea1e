// The checksum of the model that adapters belong to, stored in checkpoints and folders of adapters.
//
// It covers every tensor's name, type and shape, and up to 64 KiB of its bytes, sampled: trainings differ everywhere,
// and starts need not read a large model twice. Another dtype is another base, because adapters were trained with
// rounded weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/tensor_store.h"
#include "comm/group.h"
#include "config/record.h"

namespace megalith {

// Stored with PEFT's files in a folder of adapters; PEFT ignores it.
inline constexpr const char* kAdapterBaseFile = "adapter_base.json";

// The checksum described above: 32 hexadecimal digits. Reads up to 64 KiB of each tensor.
std::string checksum_of_weights(const TensorStore& store);

// The checksum of a Hugging Face folder's weights, independent of their division into files. UserError when they cannot
// be read. Collective: the first rank reads.
std::string checksum_of_base(const std::filesystem::path& folder, Group& world);

// The base recorded in a folder of adapters; nothing if PEFT wrote it. UserError for a malformed file.
std::optional<std::string> stored_base_of(const std::filesystem::path& adapters);
void write_base(const std::filesystem::path& adapters, const std::string& base);

// The base in a checkpoint's record.
std::optional<std::string> stored_base_of(const Configuration& configuration);
void remember_base(const std::string& base, Configuration& configuration);

// UserError if adapters name another base than that of `folder`.
// adapters  their path, for the message
void check_base(const std::optional<std::string>& stored, const std::string& base, const std::string& adapters,
                const std::filesystem::path& folder);

}  // namespace megalith
