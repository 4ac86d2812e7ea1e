#include "ops/arguments.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace megalith::ops {
namespace {

[[noreturn]] void refuse(const char* op, const Argument& argument, const std::string& found, const std::string& want) {
  throw UserError(fmt::format("{}: {} {}, but must {}", op, argument.name, found, want));
}

void check_defined(const char* op, const Argument& argument) {
  if (!argument.tensor.defined()) refuse(op, argument, "is undefined", "be a tensor");
}

std::string shape_text(at::IntArrayRef sizes) { return fmt::format("({})", fmt::join(sizes, ", ")); }

}  // namespace

void check_floating(const char* op, const Argument& argument) {
  check_defined(op, argument);
  switch (argument.tensor.scalar_type()) {
    case at::kBFloat16:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
      return;
    default:
      refuse(op, argument, fmt::format("is {}", c10::toString(argument.tensor.scalar_type())),
             "be BFloat16, Half, Float or Double");
  }
}

void check_dtype(const char* op, const Argument& argument, at::ScalarType want) {
  check_defined(op, argument);
  if (argument.tensor.scalar_type() == want) return;
  refuse(op, argument, fmt::format("is {}", c10::toString(argument.tensor.scalar_type())),
         fmt::format("be {}", c10::toString(want)));
}

void check_rank(const char* op, const Argument& argument, int64_t want) {
  check_defined(op, argument);
  if (argument.tensor.dim() == want) return;
  refuse(op, argument, fmt::format("has shape {}", shape_text(argument.tensor.sizes())),
         fmt::format("have {} dim{}", want, want == 1 ? "" : "s"));
}

void check_shape(const char* op, const Argument& argument, at::IntArrayRef want) {
  check_defined(op, argument);
  if (argument.tensor.sizes() == want) return;
  refuse(op, argument, fmt::format("has shape {}", shape_text(argument.tensor.sizes())),
         fmt::format("be {}", shape_text(want)));
}

void check_contiguous(const char* op, const Argument& argument) {
  check_defined(op, argument);
  if (argument.tensor.is_contiguous()) return;
  refuse(op, argument, fmt::format("has strides {}", shape_text(argument.tensor.strides())),
         "be contiguous: call contiguous() first");
}

void check_rows(const char* op, const Argument& argument) {
  check_rank(op, argument, 2);
  const at::Tensor& x = argument.tensor;
  if (x.stride(1) == 1 || x.size(1) <= 1 || x.numel() == 0) return;
  throw UserError(fmt::format("{}: rows of {} have stride {}, but must be contiguous", op, argument.name, x.stride(1)),
                  "call contiguous() first");
}

void check_devices(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  for (const Argument& argument : arguments) {
    check_defined(op, argument);
    if (argument.tensor.device() == first.tensor.device()) continue;
    refuse(op, argument, fmt::format("is on {}", argument.tensor.device().str()),
           fmt::format("be on {}, where {} is", first.tensor.device().str(), first.name));
  }
}

void check_dense(const char* op, const Argument& argument, at::IntArrayRef shape, at::ScalarType dtype,
                 const Argument& beside) {
  check_shape(op, argument, shape);
  check_dtype(op, argument, dtype);
  check_contiguous(op, argument);
  check_devices(op, {beside, argument});
}

void check_dense_rows(const char* op, const Argument& argument) {
  check_floating(op, argument);
  check_rank(op, argument, 2);
  check_contiguous(op, argument);
}

void check_even_columns(const char* op, const Argument& argument) {
  const int64_t columns = argument.tensor.size(1);
  if (columns % 2 == 0) return;
  throw UserError(
      fmt::format("{}: {} has {} columns, but must have an even number: [gate | up]", op, argument.name, columns));
}

Dtype to_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return Dtype::kBFloat16;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kDouble:
      return Dtype::kFloat64;
    default:
      MEGALITH_CHECK(dtype == at::kFloat, "{} is no floating type of kernels", c10::toString(dtype));
      return Dtype::kFloat32;
  }
}

}  // namespace megalith::ops
