// Checks of an operator's arguments, made once, in its interface: UserError naming the operator, the argument, what was
// wanted and what was found.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "ops/dtype.h"

namespace megalith::ops {

// An argument and its name in messages.
struct Argument {
  const char* name;
  const at::Tensor& tensor;
};

// bf16, fp16, fp32 or fp64.
void check_floating(const char* op, const Argument& argument);
void check_dtype(const char* op, const Argument& argument, at::ScalarType want);
void check_rank(const char* op, const Argument& argument, int64_t want);
void check_shape(const char* op, const Argument& argument, at::IntArrayRef want);
void check_contiguous(const char* op, const Argument& argument);
// Every tensor has the device of the first.
void check_devices(const char* op, std::initializer_list<Argument> arguments);

// The dtype that sums and statistics are kept in: fp64 for fp64, fp32 for everything else.
inline at::ScalarType wide_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// The tag that kernels free of torch headers understand. dtype is one of the four that check_floating lets through.
Dtype to_dtype(at::ScalarType dtype);

}  // namespace megalith::ops
