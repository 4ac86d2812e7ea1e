// The name of this machine.
#pragma once

#include <string>

namespace megalith {

// "localhost" if it has none.
std::string host_name();

}  // namespace megalith
