// Writes what torch_archive.h reads: torch.save's zip files, beside one another in one file.
//
// Sizes are 64-bit throughout, and a storage begins at a multiple of 64 bytes of the file, so that it can be mapped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "core/file.h"

namespace megalith {

// A value as pickle_writer.h makes it, and the bytes of storage "0", if its tensors are in one. Returns the number of
// bytes.
int64_t append_archive(AtomicFile& file, std::string_view value, std::string_view storage = {});
// A contiguous tensor on the CPU.
int64_t append_archive(AtomicFile& file, const at::Tensor& tensor);

}  // namespace megalith
