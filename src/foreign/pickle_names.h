// The closed list of classes and functions that pickle.cc reads.
#pragma once

#include <optional>
#include <string_view>

namespace megalith {

// The effect of calling a name.
enum class NameUse {
  kObject,  // items and state
  kDict,    // an empty dict, or one of pairs
  kTuple,   // of its one argument
  kBytes,   // of a text: _codecs.encode(text, "latin1")
};

// Nothing for a name that is not on the list.
std::optional<NameUse> use_of_name(std::string_view name);

}  // namespace megalith
