// Sentence splitting: one rule for all languages, for BERT, T5 and ICT data (`prepare --split_sentences`).
//
// A sentence ends after  . ! ? …  and closing quotes or brackets if a blank or the end of the text follows, after
// 。！？｡ and closing marks always, and at an empty line. It does not end
//   - when the next word begins with a small letter ("etc. and", "'Stop!' he said");
//   - after a title or short form that is never last ("Dr.", "e.g.", "vs.");
//   - after an initial ("J. Smith");
//   - when a digit follows a short form that counts ("No. 5", "pp. 3");
//   - after a number that begins the text, a line or a sentence ("1. Introduction").
// Blanks around a sentence belong to none; line breaks inside one stay.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

namespace megalith {

// Sentences of `text` (valid UTF-8) in order, as views of it; none if blank.
// keep_newlines  a sentence keeps blanks after it up to their last line break
std::vector<std::string_view> split_sentences(std::string_view text, bool keep_newlines);
void for_each_sentence(std::string_view text, bool keep_newlines,
                       const std::function<void(std::string_view)>& on_sentence);

}  // namespace megalith
