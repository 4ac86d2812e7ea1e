// NaN and infinities in loaded values come from diverged training or damage, and make comparisons fail silently.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace megalith {

enum class NonfiniteWeights { kRefused, kAllowed };

// UserError with file, tensor, first non-finite element and their number. -inf is allowed in biases and attention
// sinks, where it disables an entry.
//   name    canonical
//   values  a box of the tensor, any dtype and device; read once, by all threads
//   offset  the box's
//   file    for the message
void require_finite(std::string_view name, const at::Tensor& values, std::span<const int64_t> offset,
                    const std::filesystem::path& file);

}  // namespace megalith
