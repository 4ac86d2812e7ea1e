// Checks arguments. UserErrors name operator, argument, wanted and found.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "ops/dtype.h"

namespace megalith::ops {

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
// Two dims, the last contiguous.
void check_rows(const char* op, const Argument& argument);
void check_devices(const char* op, std::initializer_list<Argument> arguments);
// Contiguous, on the device of `beside`.
void check_dense(const char* op, const Argument& argument, at::IntArrayRef shape, at::ScalarType dtype,
                 const Argument& beside);
void check_dense_rows(const char* op, const Argument& argument);
// [gate | up] of equal widths.
void check_even_columns(const char* op, const Argument& argument);

// For sums and statistics.
inline at::ScalarType wide_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

inline at::TensorOptions wide_options(const at::Tensor& x) { return x.options().dtype(wide_dtype(x.scalar_type())); }

inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* mutable_data_or_null(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

// For kernels free of torch headers; dtype passed check_floating.
Dtype to_dtype(at::ScalarType dtype);

}  // namespace megalith::ops
