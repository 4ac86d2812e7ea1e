// Jinja templates as transformers renders the chat templates of models: its blanks, its filters and tests, its own
// functions raise_exception and strftime_now. The part of Jinja that is read: jinja_syntax.h.
//
// Rendering is bounded in depth and by a budget (jinja_budget.h), because a template comes with a downloaded model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_syntax.h"

namespace megalith {

class JinjaTemplate {
 public:
  // name  for messages: the file that holds it
  // UserError, with name and line, for a construct that is not known.
  JinjaTemplate(std::string_view source, std::string name);

  // UserError, with name and line, for what the template refuses by raise_exception, and for what cannot be computed.
  // use  if not null, receives what was used up, also when this throws
  std::string render(const JinjaMembers& variables, const JinjaLimits& limits = {}, JinjaUse* use = nullptr) const;

 private:
  std::string name_;
  std::vector<JinjaStatement> body_;
};

}  // namespace megalith
