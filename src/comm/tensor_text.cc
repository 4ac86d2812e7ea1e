#include "comm/tensor_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace megalith {

std::string text_of(at::ScalarType dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", c10::toString(dtype), fmt::join(shape, ", "));
}

std::string text_of(const at::Tensor& tensor) { return text_of(tensor.scalar_type(), tensor.sizes()); }

}  // namespace megalith
