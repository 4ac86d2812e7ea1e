// A failing process's traces besides its message.
#pragma once

#include <string_view>

#include "config/yaml_document.h"

namespace megalith {

// Fills TORCHELASTIC_ERROR_FILE, which torchrun quotes for a failed rank. Source:
// torch/distributed/elastic/multiprocessing/errors.
void leave_error_file(const EnvironmentMap& environment, std::string_view message) noexcept;

// For std::set_terminate(): reports exceptions on libraries' threads as this rank's error; exit code 1.
[[noreturn]] void end_for_uncaught_exception() noexcept;

}  // namespace megalith
