// Names of settings in messages; see setting.h.
#include "config/setting.h"

namespace megalith {

std::string named_at(const Setting& setting) {
  if (setting.source.layer == OptionLayer::kCommandLine) return "--" + setting.name;
  return setting.source.where + ": " + setting.name;
}

}  // namespace megalith
