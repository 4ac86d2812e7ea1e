// Where sentences end: one rule for all languages, for BERT, T5 and ICT data (`prepare --split_sentences`).
//
// A sentence ends behind  . ! ? …  and closing quotes or brackets when a blank or the end of the text follows, behind
// 。！？｡ and closing marks always, and at an empty line. It does not end
//   - when the next word begins with a small letter ("etc. and", "'Stop!' he said");
//   - behind a title or short form that is never last ("Dr.", "e.g.", "vs.");
//   - behind an initial ("J. Smith");
//   - when a digit follows, behind a short form that counts ("No. 5", "pp. 3");
//   - behind a number that begins the text, a line or a sentence ("1. Introduction").
// Blanks around a sentence belong to none; line breaks inside one stay.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

namespace megalith {

// The sentences of `text` (valid UTF-8) in order, as views of it; none when it has only blanks.
// keep_newlines  blanks behind a sentence stay with it up to their last line break
std::vector<std::string_view> split_sentences(std::string_view text, bool keep_newlines);
// The same one by one.
void for_each_sentence(std::string_view text, bool keep_newlines,
                       const std::function<void(std::string_view)>& on_sentence);

}  // namespace megalith
