// Vectors in file formats of other programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace megalith {

// A .npy file of (n, h) fp32. Source: numpy/lib/format.py (version 1.0).
std::string npy_text(const at::Tensor& rows);

// {"text":"…","vector":[…]}: one line per row of (n, h) fp32, which ends the row's JSON object. Objects must not be
// empty.
std::string vector_lines(const std::vector<std::string>& objects, const at::Tensor& rows);

}  // namespace megalith
