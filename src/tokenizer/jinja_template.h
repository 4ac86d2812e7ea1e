// Jinja templates, rendered as transformers renders chat templates: its treatment of blanks, filters, tests, and
// functions raise_exception and strftime_now. For the supported subset see jinja_syntax.h.
//
// Rendering is bounded in depth and by a budget (jinja_budget.h), because templates come with downloaded models.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_syntax.h"

namespace megalith {

class JinjaTemplate {
 public:
  // name  for messages: the file that holds it
  // UserError, with name and line, for an unknown construct.
  JinjaTemplate(std::string_view source, std::string name);

  // UserError, with name and line, for raise_exception and for what cannot be computed.
  // use  if not null, receives what was used, also on throw
  std::string render(const JinjaMembers& variables, const JinjaLimits& limits = {}, JinjaUse* use = nullptr) const;

 private:
  std::string name_;
  std::vector<JinjaStatement> body_;
};

}  // namespace megalith
