// Which model adapters belong to: a checksum of it, which checkpoints of adapters and their folders carry.
//
// It covers every tensor's name, type and shape, and up to 64 KiB of its bytes, spread over it: two trainings of one
// architecture differ all over, so a sample tells them apart, and a large model is not read twice at every start. The
// same weights in another dtype are another base, because adapters were trained beside the rounded ones.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/tensor_store.h"
#include "comm/group.h"
#include "config/record.h"

namespace megalith {

// Beside PEFT's files in a folder of adapters; PEFT does not read it.
inline constexpr const char* kAdapterBaseFile = "adapter_base.json";

// What tells the tensors of a store from others, as above: 32 hexadecimal digits. Reads up to 64 KiB of each.
std::string checksum_of_weights(const TensorStore& store);

// The weights of a Hugging Face folder give 32 hexadecimal digits, however they lie in files. UserError when they
// cannot be read. Collective: the first rank reads.
std::string checksum_of_base(const std::filesystem::path& folder, Group& world);

// What a folder of adapters says of its base; nothing where PEFT wrote it. UserError for a file that says nothing.
std::optional<std::string> stored_base_of(const std::filesystem::path& adapters);
void write_base(const std::filesystem::path& adapters, const std::string& base);

// What a checkpoint's record says of it, and adding it to a record.
std::optional<std::string> stored_base_of(const Configuration& configuration);
void remember_base(const std::string& base, Configuration& configuration);

// UserError where adapters name another base than the one of `folder`.
// adapters  where they lie, for the message
void check_base(const std::optional<std::string>& stored, const std::string& base, const std::string& adapters,
                const std::filesystem::path& folder);

}  // namespace megalith
