// Which machine this is.
#pragma once

#include <string>

namespace megalith {

// Its name in its own words, "localhost" when it has none.
std::string host_name();

}  // namespace megalith
