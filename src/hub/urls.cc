#include "hub/urls.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/strings.h"

namespace megalith {

std::string url_origin(std::string_view url) {
  const size_t colon = url.find("://");
  if (colon == std::string_view::npos) return "";
  const std::string scheme = lower_case(url.substr(0, colon));
  if (scheme != "http" && scheme != "https") return "";
  std::string_view host = url.substr(colon + 3);
  host = host.substr(0, host.find_first_of("/?#\\"));
  if (const size_t at = host.rfind('@'); at != std::string_view::npos) host.remove_prefix(at + 1);
  if (host.empty()) return "";
  const size_t port = host.rfind(':');
  const bool has_port = port != std::string_view::npos && host.find(']', port) == std::string_view::npos;
  return fmt::format("{}://{}{}", scheme, lower_case(host), has_port ? "" : scheme == "https" ? ":443" : ":80");
}

std::string shown_url(std::string_view url) {
  std::string_view rest = url.substr(0, url.find_first_of("?#"));
  const size_t colon = rest.find("://");
  if (colon == std::string_view::npos) return std::string(rest);
  const std::string_view scheme = rest.substr(0, colon + 3);
  rest.remove_prefix(colon + 3);
  const size_t at = rest.substr(0, rest.find('/')).rfind('@');
  if (at != std::string_view::npos) rest.remove_prefix(at + 1);
  return fmt::format("{}{}", scheme, rest);
}

std::string percent_encoded(std::string_view text, std::string_view kept) {
  std::string result;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view("-._~").find(c) != std::string_view::npos ||
                          kept.find(c) != std::string_view::npos;
    if (is_plain) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    }
  }
  return result;
}

}  // namespace megalith
