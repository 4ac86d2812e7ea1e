// The name of this machine.
#pragma once

#include <string>

namespace megalith {

// "localhost" if unnamed.
std::string host_name();

}  // namespace megalith
