// "1 sample", "3 samples".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

std::string number_of(int64_t count, std::string_view one, std::string_view several);

}  // namespace megalith
