// Makes outside text (files, hubs, variables, a model's output) safe for a terminal, a log or a page.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// Escapes everything a terminal could obey: "\x1b", "\x9b", "\u202e". That is ASCII control characters except tab and
// line break, Latin-1's (U+0080 to U+009F), Unicode's bidirectional embeddings, overrides and isolates (Boucher and
// Anderson 2021, arXiv:2111.00169), and invalid UTF-8. Colours too: one of them hides text; our own are added later.
std::string visible_text(std::string_view text);

}  // namespace megalith
