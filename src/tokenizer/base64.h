// Base64 (RFC 4648), as tokens and maps of bytes are written in JSON and tiktoken files.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// The bytes; `what` names the text in the UserError for one that is not base64.
std::string decode_base64(std::string_view text, std::string_view what);

}  // namespace megalith
