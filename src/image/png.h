// Writing PNG.
#pragma once

#include "image/picture.h"

namespace megalith {

// The picture as a PNG file of eight bits a channel.
std::string encode_png(const Picture& picture);

}  // namespace megalith
