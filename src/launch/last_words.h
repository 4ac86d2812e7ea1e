// What a process leaves behind that ends with an error, beside its own message.
#pragma once

#include <string_view>

#include "config/yaml_document.h"

namespace megalith {

// Under torchrun: the file (TORCHELASTIC_ERROR_FILE) from which it takes what it says of a rank that failed, where it
// would otherwise advise how to get a traceback of Python. Source: torch/distributed/elastic/multiprocessing/errors.
void leave_error_file(const EnvironmentMap& environment, std::string_view message) noexcept;

// For std::set_terminate(): an exception that a thread of Gloo or another library throws cannot be caught elsewhere.
// Says what it was, as an error of this rank, and ends the process with exit code 1.
[[noreturn]] void end_for_uncaught_exception() noexcept;

}  // namespace megalith
