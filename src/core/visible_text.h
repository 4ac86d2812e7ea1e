// Texts from outside (files, hubs, variables, what a model writes) as they may reach a terminal, a log or a page.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

enum class Colours { kShown, kKept };

// The text with everything a terminal could obey written out: "\x1b", "\x9b", "\u202e". That is the control characters
// of ASCII but tab and line break, those of Latin-1 (U+0080 to U+009F), the marks that turn the order of letters around
// (Unicode's bidirectional embeddings, overrides and isolates; Boucher and Anderson 2021, arXiv:2111.00169), and bytes
// that are no UTF-8. Kept colours are the sequences ESC [ digits and semicolons m, which our own tables are drawn with.
std::string visible_text(std::string_view text, Colours colours = Colours::kShown);

}  // namespace megalith
