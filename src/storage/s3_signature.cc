#include "storage/s3_signature.h"

#include <fmt/format.h>

#include "core/sha256.h"
#include "core/strings.h"
#include "hub/urls.h"

namespace megalith {
namespace {

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

// core/sha256.h gives digits; keys of the chain are bytes.
std::string hmac_bytes(std::string_view key, std::string_view text) {
  const std::string digits = hmac_sha256(key, text);
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    bytes += static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1]));
  }
  return bytes;
}

}  // namespace

std::string encoded_query(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [name, value] : query) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", percent_encoded(name), percent_encoded(value));
  }
  return text;
}

std::string s3_signature(const S3Call& call, const S3Settings& settings, std::string_view time,
                         std::string_view body_hash) {
  std::map<std::string, std::string> headers = call.headers;
  headers["host"] = call.host;
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += fmt::format("{}:{}\n", name, trim(value));
    names += fmt::format("{}{}", names.empty() ? "" : ";", name);
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", call.method, call.path, encoded_query(call.query),
                                            lines, names, body_hash);
  const std::string_view day = time.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, settings.region);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, sha256_hex(canonical));
  std::string key = "AWS4" + settings.secret_key;
  for (const std::string_view part : {day, std::string_view(settings.region), std::string_view("s3"),
                                      std::string_view("aws4_request")}) {
    key = hmac_bytes(key, part);
  }
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}", settings.access_key, scope,
                     names, hmac_sha256(key, text));
}

}  // namespace megalith
