// Stand-ins for the ATen operators that call vendors' libraries on a GPU: cuDNN's attention and flash attention.
// They read and give tensors of the same layouts, refuse what the libraries refuse, and keep no matrix of scores.
#pragma once

#include <cstdint>

namespace megalith::pretend {

// Calls so far, forward and backward.
struct VendorCalls {
  int64_t flash = 0, flash_with_lengths = 0, cudnn = 0;
};
VendorCalls vendor_calls();

}  // namespace megalith::pretend
