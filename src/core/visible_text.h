// Texts from outside (files, hubs, variables, what a model writes) as they may reach a terminal, a log or a page.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// The text with everything a terminal could obey written out: "\x1b", "\x9b", "\u202e". That is the control characters
// of ASCII but tab and line break, those of Latin-1 (U+0080 to U+009F), the marks that turn the order of letters around
// (Unicode's bidirectional embeddings, overrides and isolates; Boucher and Anderson 2021, arXiv:2111.00169), and bytes
// that are no UTF-8. Colours are written out too: one of them hides text. Our own are added afterwards.
std::string visible_text(std::string_view text);

}  // namespace megalith
