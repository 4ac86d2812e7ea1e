// NaN and infinities in what is loaded. They come from training that diverged or from damage, and every comparison with
// what is computed from them fails silently, so a load refuses them by name unless it was told to take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace megalith {

enum class NonfiniteWeights { kRefused, kAllowed };

// UserError, with file, tensor, the first such element and their number, where values are not finite. -inf is right in
// what is added to scores, a bias or a sink of attention: it switches off what it is added to.
// name    of the canonical tensor
// values  a box of it, of any dtype on any device; read once, by all threads
// offset  where the box begins in the tensor
// file    that it was read from
void require_finite(std::string_view name, const at::Tensor& values, std::span<const int64_t> offset,
                    const std::filesystem::path& file);

}  // namespace megalith
