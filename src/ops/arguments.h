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
// Two dims, of which the last is contiguous: rows may be apart.
void check_rows(const char* op, const Argument& argument);
// Every tensor has the device of the first.
void check_devices(const char* op, std::initializer_list<Argument> arguments);
// Contiguous, of this shape and dtype, on the device of `beside`.
void check_dense(const char* op, const Argument& argument, at::IntArrayRef shape, at::ScalarType dtype,
                 const Argument& beside);
// Floating, contiguous, of two dims.
void check_dense_rows(const char* op, const Argument& argument);
// [gate | up]: both of one width.
void check_even_columns(const char* op, const Argument& argument);

// The dtype that sums and statistics are kept in: fp64 for fp64, fp32 for everything else.
inline at::ScalarType wide_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// x's options with that dtype.
inline at::TensorOptions wide_options(const at::Tensor& x) { return x.options().dtype(wide_dtype(x.scalar_type())); }

// Null for an undefined tensor.
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* mutable_data_or_null(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

// The tag that kernels free of torch headers understand. dtype is one of the four that check_floating lets through.
Dtype to_dtype(at::ScalarType dtype);

}  // namespace megalith::ops
