// Makes outside text safe for a terminal, log or page.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// Escapes what a terminal obeys as "\x1b", "\u202e": control characters except tab and line break, U+0080 to U+009F,
// bidirectional embeddings, overrides and isolates (Boucher and Anderson 2021, arXiv:2111.00169), invalid UTF-8.
// Colours too: one hides text; ours are added later.
std::string visible_text(std::string_view text);

}  // namespace megalith
