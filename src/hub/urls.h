// URLs as texts.
#pragma once

#include <string>
#include <string_view>

namespace megalith {

// "https://host:443" in lower case; "" unless an http or https URL.
std::string url_origin(std::string_view url);

// For messages: without user, password, query and fragment.
std::string shown_url(std::string_view url);

// Escapes anything but letters, digits, "-._~" and `kept` as %XX.
std::string percent_encoded(std::string_view text, std::string_view kept = "");

}  // namespace megalith
