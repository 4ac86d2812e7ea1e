// NaN and infinities in loaded values come from diverged training or damage, and make every comparison fail silently,
// so loading refuses them unless allowed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace megalith {

enum class NonfiniteWeights { kRefused, kAllowed };

// UserError with file, tensor, first non-finite element and their number. -inf is allowed in additive score terms, a
// bias or an attention sink, where it disables an entry.
// name    of the canonical tensor
// values  a box of it, of any dtype on any device; read once, by all threads
// offset  of the box in the tensor
// file    the source
void require_finite(std::string_view name, const at::Tensor& values, std::span<const int64_t> offset,
                    const std::filesystem::path& file);

}  // namespace megalith
