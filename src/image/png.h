// Writing PNG.
#pragma once

#include "image/picture.h"

namespace megalith {

std::string encode_png(const Picture& picture);

}  // namespace megalith
